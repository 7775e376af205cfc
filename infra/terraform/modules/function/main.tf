# The functions: what callers reach. Each is a Cloud Run service of one image, which functions-framework serves; all of them
# act as one account, which may call the pool and nothing else.

resource "google_cloud_run_v2_service" "this" {
  for_each = var.functions

  project             = var.project
  name                = "warmpool-${var.env}-${each.key}"
  location            = var.region
  description         = "warmpool's function ${each.key}"
  ingress             = var.ingress
  deletion_protection = var.deletion_protection

  template {
    service_account                  = var.emails["function"]
    encryption_key                   = var.key
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"
    timeout                          = "${var.request_s_max}s"
    max_instance_request_concurrency = var.concurrency

    scaling {
      min_instance_count = 0
      max_instance_count = var.instances_max
    }

    # All of it: only what comes through the network counts as internal, for the pool.
    vpc_access {
      egress = "ALL_TRAFFIC"

      network_interfaces {
        network    = var.network
        subnetwork = var.subnet
      }
    }

    containers {
      image = var.image

      ports {
        name           = "http1"
        container_port = 8080
      }

      resources {
        cpu_idle          = true
        startup_cpu_boost = true
        limits            = { cpu = "1", memory = "512Mi" }
      }

      startup_probe {
        period_seconds    = 1
        timeout_seconds   = 1
        failure_threshold = 60

        tcp_socket {
          port = 8080
        }
      }

      dynamic "env" {
        for_each = merge({
          FUNCTION_TARGET         = each.value.target
          WARMPOOL_URLS           = var.pool_url
          WARMPOOL_AUDIENCE       = var.pool_url # calls bring an identity token, which is made for this
          WARMPOOL_TIMEOUT_MS     = tostring(min(10, var.request_s_max) * 1000)
          WARMPOOL_TIMEOUT_MS_MAX = tostring(var.request_s_max * 1000)
          OTEL_TRACES_SAMPLER     = "traceidratio" # whatever Cloud Run chose for itself; the pool is told
          OTEL_TRACES_SAMPLER_ARG = tostring(var.trace_share)
          }, each.value.source == null ? {} : {
          FUNCTION_SOURCE                                     = each.value.source
          }, var.otlp_endpoint == "" ? { OTEL_TRACES_EXPORTER = "console" } : {
          OTEL_EXPORTER_OTLP_ENDPOINT                         = var.otlp_endpoint
        })

        content {
          name  = env.key
          value = env.value
        }
      }
    }
  }

  # `make deploy` decides what runs, and who of it gets requests. gcloud leaves marks of its own, which are no change either.
  lifecycle {
    ignore_changes = [
      client, client_version, template[0].annotations, template[0].containers[0].image, template[0].labels, template[0].revision,
      traffic,
    ]
  }
}

resource "google_cloud_run_v2_service_iam_member" "caller" {
  for_each = { for pair in setproduct(keys(var.functions), var.invokers) : "${pair[0]}/${pair[1]}" => { function = pair[0], member = pair[1] } }

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.this[each.value.function].name
  role     = "roles/run.invoker"
  member   = each.value.member
}

# Objects that are finalised, by way of the bucket's own topic: Eventarc's direct events of Cloud Storage need a role on
# the whole project for who receives them, and another one for the service that sends them.
resource "google_eventarc_trigger" "finalized" {
  count = var.event_function == null ? 0 : 1

  project         = var.project
  name            = "warmpool-${var.env}-finalized"
  location        = var.region
  service_account = var.emails["notifier"]

  matching_criteria {
    attribute = "type"
    value     = "google.cloud.pubsub.topic.v1.messagePublished"
  }

  transport {
    pubsub {
      topic = var.topic
    }
  }

  destination {
    cloud_run_service {
      service = google_cloud_run_v2_service.this[var.event_function].name
      region  = var.region
    }
  }

  depends_on = [google_cloud_run_v2_service_iam_member.notifier]
}

resource "google_cloud_run_v2_service_iam_member" "notifier" {
  count = var.event_function == null ? 0 : 1

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.this[var.event_function].name
  role     = "roles/run.invoker"
  member   = "serviceAccount:${var.emails["notifier"]}"
}
