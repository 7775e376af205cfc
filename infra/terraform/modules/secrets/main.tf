# Keys that sign, and those that are trusted. Only their places are made here: what is in them is added by whoever has
# made the keys (`warmpool cache keygen`, `gcloud secrets versions add`), and never gets into a state file. Until then
# there is a version that is no key, or nothing that reads the newest one could be made.

locals {
  readers = {
    trusted-keys          = ["pool", "publisher", "care"]
    publisher-signing-key = ["publisher"]
    worker-signing-key    = var.compiles ? ["pool"] : []
  }

  grants = merge([
    for secret, readers in local.readers : { for reader in readers : "${secret}/${reader}" => { secret = secret, reader = reader } }
  ]...)
}

resource "google_secret_manager_secret" "this" {
  for_each = local.readers

  project             = var.project
  secret_id           = "warmpool-${var.env}-${each.key}"
  deletion_protection = var.deletion_protection
  version_destroy_ttl = "604800s" # a version that is destroyed can be brought back for 7 days

  replication {
    user_managed {
      replicas {
        location = var.region

        customer_managed_encryption {
          kms_key_name = var.key
        }
      }
    }
  }
}

resource "google_secret_manager_secret_version" "none" {
  for_each = local.readers

  secret      = google_secret_manager_secret.this[each.key].id
  secret_data = "no key yet: gcloud secrets versions add ${google_secret_manager_secret.this[each.key].secret_id} --data-file FILE"

  lifecycle {
    ignore_changes = [enabled, secret_data]
  }
}

resource "google_secret_manager_secret_iam_member" "reader" {
  for_each = local.grants

  project   = var.project
  secret_id = google_secret_manager_secret.this[each.value.secret].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${var.emails[each.value.reader]}"
}
