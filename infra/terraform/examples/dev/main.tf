# To try things out: small, nothing warm while nobody calls, functions that can be called from anywhere by who may, and all
# of it can be destroyed.

module "warmpool" {
  source = "../.."

  project = var.project
  region  = var.region
  env     = "dev"

  functions = {
    embed   = { target = "embed", source = "examples/embed/function.py" }
    digits  = { target = "digits", source = "examples/digits/function.py" }
    options = { target = "options", source = "examples/options/function.py" }
  }

  instance      = { cpu = 2, memory_gib = 4 }
  instances_min = 0
  instances_max = 2

  function_ingress    = "INGRESS_TRAFFIC_ALL"
  function_invokers   = var.callers
  deployers           = var.deployers
  operators           = var.operators
  deletion_protection = false
  noncurrent_days     = 7
  trace_share         = 1
  log_days            = { all = 7, audit = 30, traces = 7 }
  billing_account     = var.billing_account
  budget              = { amount = 50, currency = "EUR" }
}
