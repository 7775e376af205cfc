# Functions: who calls them, what they call, and where their spans go.

mock_provider "google" {}

variables {
  project             = "some-project"
  region              = "europe-west4"
  env                 = "test"
  image               = "example.com/function:abc"
  instances_max       = 5
  concurrency         = 100
  request_s_max       = 60
  otlp_endpoint       = ""
  topic               = "projects/some-project/topics/artifacts"
  key                 = "projects/p/locations/l/keyRings/r/cryptoKeys/run"
  network             = "network"
  subnet              = "subnet"
  deletion_protection = true
  emails              = { function = "function@example.com", notifier = "notifier@example.com" }
}

run "functions_are_called_by_who_may_call_them_and_call_the_pool" {
  command = plan

  module {
    source = "./modules/function"
  }

  variables {
    functions      = { embed = { target = "embed", source = "examples/embed/function.py" }, other = { target = "main" } }
    ingress        = "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"
    invokers       = ["group:callers@example.com"]
    event_function = "other"
    pool_url       = "https://pool.example.com"
    trace_share    = 0.05
  }

  assert {
    condition     = alltrue([for function in values(google_cloud_run_v2_service.this) : function.template[0].service_account == "function@example.com" && function.template[0].vpc_access[0].egress == "ALL_TRAFFIC" && length(function.template[0].volumes) == 0])
    error_message = "a function acts as somebody else, goes out another way, or is given secrets"
  }

  assert {
    condition = { for one in google_cloud_run_v2_service.this["embed"].template[0].containers[0].env : one.name => one.value } == {
      FUNCTION_TARGET     = "embed", FUNCTION_SOURCE = "examples/embed/function.py", WARMPOOL_URLS = "https://pool.example.com"
      WARMPOOL_AUDIENCE   = "https://pool.example.com", WARMPOOL_TIMEOUT_MS = "10000", WARMPOOL_TIMEOUT_MS_MAX = "60000"
      OTEL_TRACES_SAMPLER = "traceidratio", OTEL_TRACES_SAMPLER_ARG = "0.05", OTEL_TRACES_EXPORTER = "console"
    }
    error_message = "a function is told something else"
  }

  assert {
    condition     = { for name, right in google_cloud_run_v2_service_iam_member.caller : name => "${right.role} ${right.member}" } == { for name in ["embed", "other"] : "${name}/group:callers@example.com" => "roles/run.invoker group:callers@example.com" }
    error_message = "somebody else may call a function"
  }

  assert {
    condition     = google_eventarc_trigger.finalized[0].transport[0].pubsub[0].topic == var.topic && google_eventarc_trigger.finalized[0].destination[0].cloud_run_service[0].service == "warmpool-test-other" && google_cloud_run_v2_service_iam_member.notifier[0].name == "warmpool-test-other" && google_cloud_run_v2_service_iam_member.notifier[0].role == "roles/run.invoker"
    error_message = "the function is not told, or not by the bucket's topic"
  }
}

run "a_collector_that_is_named_gets_the_functions_spans" {
  command = plan

  module {
    source = "./modules/function"
  }

  variables {
    functions     = { embed = { target = "embed" } }
    ingress       = "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"
    invokers      = []
    pool_url      = "https://pool.example.com"
    otlp_endpoint = "http://collector:4318"
    trace_share   = 1
  }

  assert {
    condition     = [for one in google_cloud_run_v2_service.this["embed"].template[0].containers[0].env : one.value if startswith(one.name, "OTEL_") && one.name != "OTEL_TRACES_SAMPLER"] == ["http://collector:4318", "1"]
    error_message = "a function is not told where spans go, or how many"
  }
}
