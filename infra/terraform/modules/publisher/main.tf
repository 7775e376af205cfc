# The job that publishes, and that makes what published versions lack. It has the shape of an instance, cpus and GPU alike:
# what it compiles is for its own kind of machine.

locals {
  environment = {
    WARMPOOL_STORE        = "gs://${var.bucket}"
    WARMPOOL_TRUSTED_KEYS = "/keys/publisher.pub"
    WARMPOOL_SIGNING_KEY  = "/signing/publisher.pem"
    WARMPOOL_AUDIT_LOG    = "-"
  }

  secrets = {
    keys    = { secret = var.secrets["trusted-keys"], path = "publisher.pub" }
    signing = { secret = var.secrets["publisher-signing-key"], path = "publisher.pem" }
  }
}

resource "google_cloud_run_v2_job" "publish" {
  project             = var.project
  name                = "warmpool-${var.env}-publish"
  location            = var.region
  deletion_protection = var.deletion_protection

  template {
    template {
      service_account               = var.email
      encryption_key                = var.key
      execution_environment         = "EXECUTION_ENVIRONMENT_GEN2"
      timeout                       = "3600s"
      max_retries                   = 1 # what was interrupted goes on where it stopped
      gpu_zonal_redundancy_disabled = var.instance.gpu == null ? null : true

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
        args  = ["cache", "fill"] # to publish: gcloud run jobs execute ... --args=publish,MODEL.py

        resources {
          limits = merge({
            cpu    = tostring(var.instance.cpu)
            memory = "${var.instance.memory_gib}Gi"
          }, var.instance.gpu == null ? {} : { "nvidia.com/gpu" = "1" })
        }

        dynamic "env" {
          for_each = local.environment

          content {
            name  = env.key
            value = env.value
          }
        }

        dynamic "volume_mounts" {
          for_each = local.secrets

          content {
            name       = volume_mounts.key
            mount_path = "/${volume_mounts.key}"
          }
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
  }

  # `make precompile` brings each new image, by gcloud, which leaves marks of its own.
  lifecycle {
    ignore_changes = [
      client, client_version, template[0].annotations, template[0].labels, template[0].template[0].containers[0].image,
    ]
  }
}
