# One key for each kind of thing that is encrypted, which only the service that stores it may use. Names of key rings and
# keys can never be used again in a project: what was destroyed has to be imported, or another env chosen.

data "google_project" "this" {
  project_id = var.project
}

data "google_storage_project_service_account" "this" {
  project = var.project
}

data "google_logging_project_cmek_settings" "this" {
  project = var.project
}

locals {
  number = data.google_project.this.number

  users = {
    storage  = data.google_storage_project_service_account.this.email_address
    registry = "service-${local.number}@gcp-sa-artifactregistry.iam.gserviceaccount.com"
    secrets  = "service-${local.number}@gcp-sa-secretmanager.iam.gserviceaccount.com"
    pubsub   = "service-${local.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
    run      = "service-${local.number}@serverless-robot-prod.iam.gserviceaccount.com"
    logs     = data.google_logging_project_cmek_settings.this.service_account_id
  }
}

resource "google_kms_key_ring" "this" {
  project  = var.project
  name     = "warmpool-${var.env}"
  location = var.region
}

resource "google_kms_crypto_key" "this" {
  #checkov:skip=CKV_GCP_82:prevent_destroy cannot depend on a variable, and dev has to be destroyable; a destroyed key can be brought back for 30 days
  for_each = local.users

  name                       = each.key
  key_ring                   = google_kms_key_ring.this.id
  purpose                    = "ENCRYPT_DECRYPT"
  rotation_period            = "7776000s" # 90 days
  destroy_scheduled_duration = "2592000s" # 30 days in which a destroyed key, and all that it encrypts, can be brought back

  version_template {
    algorithm        = "GOOGLE_SYMMETRIC_ENCRYPTION"
    protection_level = "SOFTWARE"
  }
}

resource "google_kms_crypto_key_iam_member" "user" {
  for_each = local.users

  crypto_key_id = google_kms_crypto_key.this[each.key].id
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:${each.value}"
}
