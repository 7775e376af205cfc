# What is stored: the bucket, images, secrets and the keys that all of it is encrypted with.

mock_provider "google" {}

variables {
  project = "some-project"
  region  = "europe-west4"
  env     = "test"
}

run "the_bucket_is_private_encrypted_and_forgives" {
  command = plan

  module {
    source = "./modules/storage"
  }

  variables {
    storage_key         = "projects/p/locations/l/keyRings/r/cryptoKeys/storage"
    pubsub_key          = "projects/p/locations/l/keyRings/r/cryptoKeys/pubsub"
    storage_agent       = "storage@example.com"
    deletion_protection = true
    noncurrent_days     = 30
  }

  assert {
    condition     = google_storage_bucket.artifacts.public_access_prevention == "enforced" && google_storage_bucket.artifacts.uniform_bucket_level_access
    error_message = "the bucket could be made public"
  }

  assert {
    condition     = google_storage_bucket.artifacts.encryption[0].default_kms_key_name == "projects/p/locations/l/keyRings/r/cryptoKeys/storage"
    error_message = "the bucket is not encrypted with our key"
  }

  assert {
    condition     = google_storage_bucket.artifacts.versioning[0].enabled && google_storage_bucket.artifacts.soft_delete_policy[0].retention_duration_seconds >= 604800
    error_message = "what is deleted cannot be brought back"
  }

  assert {
    condition = [
      for rule in google_storage_bucket.artifacts.lifecycle_rule :
      [one(rule.condition).with_state, tostring(one(rule.condition).days_since_noncurrent_time), join(",", coalesce(one(rule.condition).matches_prefix, []))] if one(rule.action).type == "Delete"
    ] == [["ARCHIVED", "30", ""], ["ARCHIVED", "1", "leases/,traffic/,wanted/"]]
    error_message = "what is current goes by its age, or what was replaced cannot be brought back for as long as it should"
  }

  assert {
    condition     = !google_storage_bucket.artifacts.force_destroy
    error_message = "a bucket that is protected is destroyed with what it holds"
  }

  assert {
    condition     = google_pubsub_topic.artifacts.kms_key_name == "projects/p/locations/l/keyRings/r/cryptoKeys/pubsub"
    error_message = "the topic is not encrypted with our key"
  }

  assert {
    condition     = google_storage_notification.finalized.event_types == toset(["OBJECT_FINALIZE"]) && google_pubsub_topic_iam_member.storage.member == "serviceAccount:storage@example.com" && google_pubsub_topic_iam_member.storage.role == "roles/pubsub.publisher"
    error_message = "nobody is told of objects that are finalised, or who tells may do more than that"
  }
}

run "a_tag_of_an_image_never_changes" {
  command = plan

  module {
    source = "./modules/registry"
  }

  variables {
    key = "projects/p/locations/l/keyRings/r/cryptoKeys/registry"
  }

  assert {
    condition     = google_artifact_registry_repository.images.docker_config[0].immutable_tags && google_artifact_registry_repository.images.kms_key_name == var.key
    error_message = "tags can be moved, or images are not encrypted with our key"
  }

  assert {
    condition     = sort([for policy in google_artifact_registry_repository.images.cleanup_policies : policy.action]) == tolist(["DELETE", "KEEP"])
    error_message = "images pile up, or the newest go too"
  }

  assert {
    condition     = output.url == "europe-west4-docker.pkg.dev/some-project/warmpool-test"
    error_message = "images are pushed to ${output.url}"
  }
}

run "only_who_needs_a_secret_reads_it" {
  command = plan

  module {
    source = "./modules/secrets"
  }

  variables {
    key                 = "projects/p/locations/l/keyRings/r/cryptoKeys/secrets"
    emails              = { function = "function@example.com", pool = "pool@example.com", publisher = "publisher@example.com", care = "care@example.com" }
    compiles            = true
    deletion_protection = true
  }

  assert {
    condition = { for name, right in google_secret_manager_secret_iam_member.reader : "${right.secret_id} ${right.member}" => right.role } == {
      "warmpool-test-trusted-keys serviceAccount:pool@example.com"               = "roles/secretmanager.secretAccessor"
      "warmpool-test-trusted-keys serviceAccount:publisher@example.com"          = "roles/secretmanager.secretAccessor"
      "warmpool-test-trusted-keys serviceAccount:care@example.com"               = "roles/secretmanager.secretAccessor"
      "warmpool-test-publisher-signing-key serviceAccount:publisher@example.com" = "roles/secretmanager.secretAccessor"
      "warmpool-test-worker-signing-key serviceAccount:pool@example.com"         = "roles/secretmanager.secretAccessor"
    }
    error_message = "secrets are read by ${join(", ", keys(google_secret_manager_secret_iam_member.reader))}"
  }

  assert {
    condition     = alltrue([for secret in values(google_secret_manager_secret.this) : secret.deletion_protection && one(one(one(secret.replication).user_managed).replicas[*]).customer_managed_encryption[0].kms_key_name == var.key])
    error_message = "a secret is not protected, or not encrypted with our key"
  }

  assert {
    condition     = alltrue([for version in values(google_secret_manager_secret_version.none) : startswith(version.secret_data, "no key yet: ")])
    error_message = "a state file gets to know a key"
  }
}

run "no_instance_reads_a_signing_key_that_does_not_compile" {
  command = plan

  module {
    source = "./modules/secrets"
  }

  variables {
    key                 = "projects/p/locations/l/keyRings/r/cryptoKeys/secrets"
    emails              = { pool = "pool@example.com", publisher = "publisher@example.com", care = "care@example.com" }
    compiles            = false
    deletion_protection = false
  }

  assert {
    condition     = alltrue([for right in values(google_secret_manager_secret_iam_member.reader) : right.secret_id != "warmpool-test-worker-signing-key"])
    error_message = "somebody reads the workers' key"
  }
}

run "each_key_has_one_user" {
  command = plan

  module {
    source = "./modules/encryption"
  }

  override_data {
    target = data.google_project.this
    values = { number = "4711" }
  }

  override_data {
    target = data.google_storage_project_service_account.this
    values = { email_address = "storage@example.com" }
  }

  override_data {
    target = data.google_logging_project_cmek_settings.this
    values = { service_account_id = "logs@example.com" }
  }

  assert {
    condition = { for name, right in google_kms_crypto_key_iam_member.user : name => right.member if right.role == "roles/cloudkms.cryptoKeyEncrypterDecrypter" } == {
      storage  = "serviceAccount:storage@example.com"
      registry = "serviceAccount:service-4711@gcp-sa-artifactregistry.iam.gserviceaccount.com"
      secrets  = "serviceAccount:service-4711@gcp-sa-secretmanager.iam.gserviceaccount.com"
      pubsub   = "serviceAccount:service-4711@gcp-sa-pubsub.iam.gserviceaccount.com"
      run      = "serviceAccount:service-4711@serverless-robot-prod.iam.gserviceaccount.com"
      logs     = "serviceAccount:logs@example.com"
    }
    error_message = "a key can be used by somebody else than who stores what it encrypts"
  }

  assert {
    condition     = alltrue([for key in values(google_kms_crypto_key.this) : key.rotation_period == "7776000s" && key.destroy_scheduled_duration == "2592000s"])
    error_message = "a key is not changed every 90 days, or is gone at once when it is destroyed"
  }
}
