# For callers who count on it: two instances that are always warm, functions behind a load balancer, and nothing that
# matters can be destroyed by one command.

module "warmpool" {
  source = "../.."

  project = var.project
  region  = var.region
  env     = "prod"

  functions = {
    embed   = { target = "embed", source = "examples/embed/function.py" }
    digits  = { target = "digits", source = "examples/digits/function.py" }
    options = { target = "options", source = "examples/options/function.py" }
  }

  instance      = var.gpu ? { cpu = 8, memory_gib = 32, gpu = "nvidia-l4" } : { cpu = 4, memory_gib = 16, gpu = null }
  instances_min = 2
  instances_max = 10

  function_ingress    = "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"
  function_invokers   = var.callers
  deployers           = var.deployers
  operators           = var.operators
  deletion_protection = true
  noncurrent_days     = 30
  log_days            = { all = 30, audit = 400, traces = 30 }
  billing_account     = var.billing_account
  budget              = { amount = 1000, currency = "EUR" }
  alert_emails        = var.alert_emails
}
