# One environment: a bucket of artifacts, a warm pool that serves them, functions before it, and what cares for all of that.

resource "google_project_service" "this" {
  for_each = toset([
    "artifactregistry", "billingbudgets", "cloudkms", "cloudresourcemanager", "cloudscheduler", "compute", "dns", "eventarc",
    "iam", "iamcredentials", "logging", "monitoring", "pubsub", "run", "secretmanager", "storage",
  ])

  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false # something else may use it
}

module "encryption" {
  source = "./modules/encryption"

  project = var.project
  region  = var.region
  env     = var.env

  depends_on = [google_project_service.this]
}

module "storage" {
  source = "./modules/storage"

  project             = var.project
  region              = var.region
  env                 = var.env
  storage_key         = module.encryption.keys["storage"]
  pubsub_key          = module.encryption.keys["pubsub"]
  storage_agent       = module.encryption.storage_agent
  deletion_protection = var.deletion_protection
  noncurrent_days     = var.noncurrent_days
}

module "registry" {
  source = "./modules/registry"

  project = var.project
  region  = var.region
  env     = var.env
  key     = module.encryption.keys["registry"]
}

module "identities" {
  source = "./modules/identities"

  project   = var.project
  env       = var.env
  bucket    = module.storage.bucket
  compiles  = var.compiles
  promotes  = var.promotes
  operators = var.operators
  deployers = var.deployers
}

module "secrets" {
  source = "./modules/secrets"

  project             = var.project
  region              = var.region
  env                 = var.env
  key                 = module.encryption.keys["secrets"]
  emails              = module.identities.emails
  compiles            = var.compiles
  deletion_protection = var.deletion_protection
}

module "network" {
  source = "./modules/network"

  project = var.project
  region  = var.region
  env     = var.env
  cidr    = var.subnet_cidr

  depends_on = [google_project_service.this]
}

module "pool" {
  source = "./modules/pool"

  project             = var.project
  region              = var.region
  env                 = var.env
  image               = var.instance_image
  instance            = var.instance
  instances_min       = var.instances_min
  instances_max       = var.instances_max
  concurrency         = var.concurrency
  request_s_max       = var.request_s_max
  compiles            = var.compiles
  otlp_endpoint       = var.otlp_endpoint
  bucket              = module.storage.bucket
  topic               = module.storage.topic
  emails              = module.identities.emails
  secrets             = module.secrets.ids
  key                 = module.encryption.keys["run"]
  network             = module.network.network
  subnet              = module.network.subnet
  deletion_protection = var.deletion_protection
}

module "publisher" {
  source = "./modules/publisher"

  project             = var.project
  region              = var.region
  env                 = var.env
  image               = var.job_image
  instance            = var.instance
  bucket              = module.storage.bucket
  email               = module.identities.emails["publisher"]
  secrets             = module.secrets.ids
  key                 = module.encryption.keys["run"]
  network             = module.network.network
  subnet              = module.network.subnet
  deletion_protection = var.deletion_protection
}

module "care" {
  source = "./modules/care"

  project             = var.project
  region              = var.region
  env                 = var.env
  image               = var.job_image
  bucket              = module.storage.bucket
  emails              = module.identities.emails
  secrets             = module.secrets.ids
  schedules           = var.care_schedules
  key                 = module.encryption.keys["run"]
  network             = module.network.network
  subnet              = module.network.subnet
  deletion_protection = var.deletion_protection
}

module "function" {
  source = "./modules/function"

  project             = var.project
  region              = var.region
  env                 = var.env
  image               = var.function_image
  functions           = var.functions
  ingress             = var.function_ingress
  invokers            = var.function_invokers
  event_function      = var.event_function
  pool_url            = module.pool.url
  topic               = module.storage.topic
  emails              = module.identities.emails
  otlp_endpoint       = var.otlp_endpoint
  trace_share         = var.trace_share
  instances_max       = 10
  concurrency         = var.concurrency
  request_s_max       = var.request_s_max
  key                 = module.encryption.keys["run"]
  network             = module.network.network
  subnet              = module.network.subnet
  deletion_protection = var.deletion_protection
}

module "observability" {
  source = "./modules/observability"

  project         = var.project
  project_number  = module.encryption.project_number
  region          = var.region
  env             = var.env
  key             = module.encryption.keys["logs"]
  days            = var.log_days
  billing_account = var.billing_account
  budget          = var.budget
  alert_emails    = var.alert_emails
}
