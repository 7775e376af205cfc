# Where images lie. A tag never changes, so what a revision runs is what was built under that name.

resource "google_artifact_registry_repository" "images" {
  project       = var.project
  repository_id = "warmpool-${var.env}"
  location      = var.region
  format        = "DOCKER"
  description   = "Images of warmpool's instances and functions, ${var.env}"
  kms_key_name  = var.key

  docker_config {
    immutable_tags = true
  }

  # Of two policies for one image, keeping wins.
  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"

    most_recent_versions {
      keep_count = 10
    }
  }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"

    condition {
      tag_state  = "ANY"
      older_than = "7776000s" # 90 days
    }
  }
}
