# Care of the store at fixed times: `warmpool cache verify` reads all of it and sets aside what is damaged, `warmpool cache
# gc` removes what nothing needs. Neither has a key that signs.

locals {
  commands = {
    verify = "Reads all of the store, sets aside what is damaged"
    gc     = "Removes what nothing needs"
  }

  environment = {
    WARMPOOL_STORE        = "gs://${var.bucket}"
    WARMPOOL_TRUSTED_KEYS = "/keys/publisher.pub"
    WARMPOOL_AUDIT_LOG    = "-"
  }
}

resource "google_cloud_run_v2_job" "this" {
  for_each = local.commands

  project             = var.project
  name                = "warmpool-${var.env}-${each.key}"
  location            = var.region
  deletion_protection = var.deletion_protection

  template {
    template {
      service_account       = var.emails["care"]
      encryption_key        = var.key
      execution_environment = "EXECUTION_ENVIRONMENT_GEN2"
      timeout               = "10800s"
      max_retries           = 0 # that something is damaged is told by the status, and is so the second time as well

      vpc_access {
        egress = "ALL_TRAFFIC"

        network_interfaces {
          network    = var.network
          subnetwork = var.subnet
        }
      }

      containers {
        image = var.image
        args  = ["cache", each.key]

        resources {
          limits = { cpu = "2", memory = "8Gi" } # weights are read whole, in files that are in memory
        }

        dynamic "env" {
          for_each = local.environment

          content {
            name  = env.key
            value = env.value
          }
        }

        volume_mounts {
          name       = "keys"
          mount_path = "/keys"
        }
      }

      volumes {
        name = "keys"

        secret {
          secret = var.secrets["trusted-keys"]

          items {
            path    = "publisher.pub"
            version = "latest"
          }
        }
      }
    }
  }

  # `make deploy` brings each new image, by gcloud, which leaves marks of its own.
  lifecycle {
    ignore_changes = [
      client, client_version, template[0].annotations, template[0].labels, template[0].template[0].containers[0].image,
    ]
  }
}

resource "google_cloud_run_v2_job_iam_member" "scheduler" {
  for_each = local.commands

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_job.this[each.key].name
  role     = "roles/run.invoker"
  member   = "serviceAccount:${var.emails["scheduler"]}"
}

resource "google_cloud_scheduler_job" "this" {
  for_each = local.commands

  project          = var.project
  region           = var.region
  name             = "warmpool-${var.env}-${each.key}"
  description      = each.value
  schedule         = var.schedules[each.key]
  time_zone        = "Etc/UTC"
  attempt_deadline = "60s"

  retry_config {
    retry_count = 3
  }

  http_target {
    http_method = "POST"
    uri         = "https://run.googleapis.com/v2/projects/${var.project}/locations/${var.region}/jobs/${google_cloud_run_v2_job.this[each.key].name}:run"

    oauth_token {
      service_account_email = var.emails["scheduler"]
    }
  }

  depends_on = [google_cloud_run_v2_job_iam_member.scheduler]
}
