# The two examples as a whole, and what is refused of a root module's variables.

mock_provider "google" {}

variables {
  project = "some-project"
  region  = "europe-west4"
}

run "prod_is_protected_and_warm" {
  command = plan

  module {
    source = "./examples/prod"
  }

  variables {
    billing_account = "0123AB-CDEF01-234567"
    callers         = ["group:callers@example.com"]
    operators       = ["group:operators@example.com"]
    alert_emails    = ["bills@example.com"]
    gpu             = true
  }

  assert {
    condition     = output.bucket == "gs://some-project-warmpool-prod" && output.pool_service == "warmpool-prod-pool" && output.publish_job == "warmpool-prod-publish"
    error_message = "names are other ones than the deployment knows"
  }

  assert {
    condition     = output.function_names == { for name in ["digits", "embed", "options"] : name => "warmpool-prod-${name}" }
    error_message = "functions have other names"
  }

  assert {
    condition     = output.registry == "europe-west4-docker.pkg.dev/some-project/warmpool-prod"
    error_message = "images are pushed elsewhere"
  }
}

run "dev_needs_no_more_than_a_project_and_a_region" {
  command = plan

  module {
    source = "./examples/dev"
  }

  assert {
    condition     = output.pool_service_account == "warmpool-dev-pool@some-project.iam.gserviceaccount.com"
    error_message = "the pool acts as somebody else"
  }
}

run "a_budget_is_made_where_there_is_a_billing_account" {
  command = plan

  module {
    source = "./modules/observability"
  }

  variables {
    env             = "test"
    project_number  = "4711"
    key             = "projects/p/locations/l/keyRings/r/cryptoKeys/logs"
    days            = { all = 30, audit = 400, traces = 14 }
    billing_account = "0123AB-CDEF01-234567"
    budget          = { amount = 200, currency = "EUR" }
    alert_emails    = ["bills@example.com"]
  }

  assert {
    condition     = google_billing_budget.this[0].budget_filter[0].projects == toset(["projects/4711"]) && google_billing_budget.this[0].amount[0].specified_amount[0].units == "200"
    error_message = "the budget is of something else"
  }

  assert {
    condition     = { for name, sink in google_logging_project_sink.this : name => sink.destination } == { for name in ["all", "audit", "traces"] : name => "logging.googleapis.com/projects/some-project/locations/europe-west4/buckets/warmpool-test-${name}" }
    error_message = "logs go somewhere else than into our buckets"
  }

  assert {
    condition     = { for name, bucket in google_logging_project_bucket_config.this : name => "${bucket.retention_days} ${bucket.cmek_settings[0].kms_key_name}" } == { for name, days in var.days : name => "${days} ${var.key}" }
    error_message = "logs are kept for another time, or not encrypted with our key"
  }
}

run "each_variable_says_what_it_allows" {
  command = plan

  variables {
    project           = "No_Project"
    region            = "europe-west4-a"
    env               = "Production"
    instance_image    = "no image"
    function_image    = "http://image"
    job_image         = "image"
    instance          = { cpu = 3, memory_gib = 64, gpu = "nvidia-h100" }
    instances_min     = 5
    instances_max     = 4
    concurrency       = 2000
    request_s_max     = 0
    compiles          = false
    promotes          = true
    otlp_endpoint     = "collector:4318"
    trace_share       = 1.5
    function_ingress  = "all"
    function_invokers = ["allUsers"]
    operators         = ["allAuthenticatedUsers"]
    deployers         = ["allUsers"]
    event_function    = "none"
    subnet_cidr       = "8.8.8.0/24"
    noncurrent_days   = 0
    log_days          = { all = 0, audit = 400, traces = 30 }
    care_schedules    = { verify = "daily", gc = "47 4 * * 0" }
    billing_account   = "mine"
    budget            = { amount = 0.5, currency = "euros" }
    alert_emails      = ["nobody"]
  }

  expect_failures = [
    var.project, var.region, var.env, var.instance_image, var.function_image, var.job_image, var.instance,
    var.instances_max, var.concurrency, var.request_s_max, var.promotes, var.otlp_endpoint, var.trace_share, var.function_ingress,
    var.function_invokers, var.operators, var.deployers, var.event_function, var.subnet_cidr, var.noncurrent_days, var.log_days,
    var.care_schedules, var.billing_account, var.budget, var.alert_emails,
  ]
}

run "a_function_is_not_called_as_something_else_is" {
  command = plan

  variables {
    env       = "test"
    functions = { pool = { target = "main" } }
  }

  expect_failures = [var.functions]
}
