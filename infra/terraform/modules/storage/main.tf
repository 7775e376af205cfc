# The artifact bucket, and the topic that says what is new in it.

resource "google_storage_bucket" "artifacts" {
  #checkov:skip=CKV_GCP_62:Who reads and writes is in Cloud Audit Logs, where data access is logged, and what it means in our own audit log; access logs would be a second bucket to protect
  project                     = var.project
  name                        = "${var.project}-warmpool-${var.env}"
  location                    = var.region
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = !var.deletion_protection

  encryption {
    default_kms_key_name = var.storage_key
  }

  # Whoever may delete an object may delete its older versions too. What was deleted for good stays here all the same.
  soft_delete_policy {
    retention_duration_seconds = 7 * 24 * 3600
  }

  versioning {
    enabled = true
  }

  # What is current goes by `warmpool cache gc` alone, which knows what is needed. Only what it replaced or removed ages.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      days_since_noncurrent_time = var.noncurrent_days
      with_state                 = "ARCHIVED"
    }
  }

  # Leases are renewed every few seconds, and each renewal leaves a version behind.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      matches_prefix             = ["leases/", "traffic/", "wanted/"]
      days_since_noncurrent_time = 1
      with_state                 = "ARCHIVED"
    }
  }

  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }
}

resource "google_pubsub_topic" "artifacts" {
  project                    = var.project
  name                       = "warmpool-${var.env}-artifacts"
  kms_key_name               = var.pubsub_key
  message_retention_duration = "86400s"

  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_topic_iam_member" "storage" {
  project = var.project
  topic   = google_pubsub_topic.artifacts.name
  role    = "roles/pubsub.publisher"
  member  = "serviceAccount:${var.storage_agent}"
}

resource "google_storage_notification" "finalized" {
  bucket         = google_storage_bucket.artifacts.name
  topic          = google_pubsub_topic.artifacts.id
  payload_format = "JSON_API_V1"
  event_types    = ["OBJECT_FINALIZE"]

  depends_on = [google_pubsub_topic_iam_member.storage]
}
