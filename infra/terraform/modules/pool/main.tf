# The warm pool: instances of `warmpool serve` on Cloud Run, in front of which nothing but functions and the bucket's
# notifications may come.

locals {
  memory_bytes = var.instance.memory_gib * pow(2, 30)

  # The container's files are in memory. A quarter of it holds copies of what the bucket has, an eighth waiting requests,
  # and a compile gets a quarter: what is left is for lanes, which map the copies.
  cache_bytes   = floor(local.memory_bytes / 4)
  queue_bytes   = floor(local.memory_bytes / 8)
  compile_bytes = floor(local.memory_bytes / 4)

  # Cloud Run takes no larger request over HTTP/1. Of what it gives us at a time the front has to be able to queue a row
  # each, or it would refuse what Cloud Run believes there is room for.
  body_bytes_max = min(32 * pow(2, 20), local.queue_bytes)
  queue_rows_max = max(4096, var.concurrency)

  environment = merge({
    WARMPOOL_STORE                    = "gs://${var.bucket}"
    WARMPOOL_HOST                     = "0.0.0.0"
    WARMPOOL_GRPC_PORT                = "0" # a service has one port
    WARMPOOL_ACCELERATOR              = var.instance.gpu == null ? "none" : "jax"
    WARMPOOL_TRUSTED_KEYS             = "/keys/publisher.pub"
    WARMPOOL_AUDIT_LOG                = "-"
    WARMPOOL_CACHE_FOLDER             = "/cache"
    WARMPOOL_CACHE_BYTES_MAX          = tostring(floor(local.cache_bytes * 0.95)) # documents and what is being written come on top
    WARMPOOL_DEADLINE_MS              = tostring(min(30, var.request_s_max) * 1000)
    WARMPOOL_BODY_BYTES_MAX           = tostring(local.body_bytes_max)
    WARMPOOL_QUEUE_BYTES_MAX          = tostring(local.queue_bytes)
    WARMPOOL_QUEUE_ROWS_MAX           = tostring(local.queue_rows_max)
    WARMPOOL_COMPILE                  = var.compiles ? "auto" : "off"
    WARMPOOL_COMPILE_MEMORY_BYTES_MAX = tostring(local.compile_bytes)
    WARMPOOL_OTLP_ENDPOINT            = coalesce(var.otlp_endpoint, "-") # lines of the log; which traces, functions say
    }, var.compiles ? {
    WARMPOOL_SIGNING_KEY = "/signing/worker.pem"
  } : {})

  secrets = merge(
    { keys = { secret = var.secrets["trusted-keys"], path = "publisher.pub" } },
    var.compiles ? { signing = { secret = var.secrets["worker-signing-key"], path = "worker.pem" } } : {},
  )
}

resource "google_cloud_run_v2_service" "pool" {
  project             = var.project
  name                = "warmpool-${var.env}-pool"
  location            = var.region
  description         = "warmpool's instances"
  ingress             = "INGRESS_TRAFFIC_INTERNAL_ONLY"
  deletion_protection = var.deletion_protection

  template {
    service_account                  = var.emails["pool"]
    encryption_key                   = var.key
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"
    timeout                          = "${var.request_s_max}s"
    max_instance_request_concurrency = var.concurrency
    gpu_zonal_redundancy_disabled    = var.instance.gpu == null ? null : true

    # Of each revision, not of the service: a revision that is tried is as warm as the one it is compared with.
    scaling {
      min_instance_count = var.instances_min
      max_instance_count = var.instances_max
    }

    vpc_access {
      egress = "ALL_TRAFFIC"

      network_interfaces {
        network    = var.network
        subnetwork = var.subnet
      }
    }

    dynamic "node_selector" {
      for_each = var.instance.gpu == null ? [] : [var.instance.gpu]

      content {
        accelerator = node_selector.value
      }
    }

    containers {
      image = var.image

      ports {
        name           = "http1"
        container_port = 8080
      }

      resources {
        # Compiles, loads and notes for the store are made between requests, too.
        cpu_idle          = false
        startup_cpu_boost = true

        limits = merge({
          cpu    = tostring(var.instance.cpu)
          memory = "${var.instance.memory_gib}Gi"
        }, var.instance.gpu == null ? {} : { "nvidia.com/gpu" = "1" })
      }

      # Until the first lane has tried what every model needs at least: then requests come.
      startup_probe {
        period_seconds    = 1
        timeout_seconds   = 1
        failure_threshold = 240

        http_get {
          path = "/v1/started"
        }
      }

      # A process that does not answer is started again. One that is not ready is not: its lanes mend themselves.
      liveness_probe {
        period_seconds    = 10
        timeout_seconds   = 5
        failure_threshold = 3

        http_get {
          path = "/v2/health/live"
        }
      }

      dynamic "env" {
        for_each = local.environment

        content {
          name  = env.key
          value = env.value
        }
      }

      volume_mounts {
        name       = "cache"
        mount_path = "/cache"
      }

      dynamic "volume_mounts" {
        for_each = local.secrets

        content {
          name       = volume_mounts.key
          mount_path = "/${volume_mounts.key}"
        }
      }
    }

    volumes {
      name = "cache"

      empty_dir {
        medium     = "MEMORY"
        size_limit = "${floor(local.cache_bytes / pow(2, 20))}Mi"
      }
    }

    dynamic "volumes" {
      for_each = local.secrets

      content {
        name = volumes.key

        secret {
          secret = volumes.value.secret

          items {
            path    = volumes.value.path
            version = "latest"
          }
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

resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = toset(["function", "notifier"])

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.pool.name
  role     = "roles/run.invoker"
  member   = "serviceAccount:${var.emails[each.key]}"
}

# One instance hears of a new version at once; the others look every few seconds anyway.
resource "google_pubsub_subscription" "changed" {
  project                    = var.project
  name                       = "warmpool-${var.env}-changed"
  topic                      = var.topic
  filter                     = "hasPrefix(attributes.objectId, \"models/\")"
  ack_deadline_seconds       = 10
  message_retention_duration = "600s"

  expiration_policy {
    ttl = ""
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  push_config {
    push_endpoint = "${google_cloud_run_v2_service.pool.uri}/v1/store/changed"

    oidc_token {
      service_account_email = var.emails["notifier"]
      audience              = google_cloud_run_v2_service.pool.uri
    }
  }
}
