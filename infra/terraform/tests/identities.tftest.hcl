# What each account may do with the objects of the bucket. What the code writes is held against the same conditions in
# tests/infra/test_rights.py.

mock_provider "google" {}

variables {
  project   = "some-project"
  env       = "test"
  bucket    = "artifacts"
  compiles  = true
  promotes  = true
  operators = ["group:operators@example.com"]
  deployers = ["group:deployers@example.com"]
}

run "each_account_does_its_own_work_and_no_more" {
  command = plan

  module {
    source = "./modules/identities"
  }

  assert {
    condition     = keys(google_service_account.this) == ["care", "function", "notifier", "pool", "publisher", "scheduler"]
    error_message = "there are other accounts than this test knows"
  }

  assert {
    condition     = { for member, right in google_service_account_iam_member.deployer : member => "${right.role} ${right.service_account_id}" } == { "group:deployers@example.com" = "roles/iam.serviceAccountTokenCreator projects/some-project/serviceAccounts/warmpool-test-function@some-project.iam.gserviceaccount.com" }
    error_message = "who deploys may act as another account than the functions', or do more than get its tokens"
  }

  assert {
    condition     = output.emails["pool"] == "warmpool-test-pool@some-project.iam.gserviceaccount.com"
    error_message = "the pool's address is ${output.emails["pool"]}"
  }

  assert {
    condition = alltrue([
      for right in concat(values(google_storage_bucket_iam_member.writer), values(google_storage_bucket_iam_member.reader), values(google_storage_bucket_iam_member.operator)) :
      !strcontains(right.member, "-function@")
    ])
    error_message = "the functions' account has a role on the bucket"
  }

  assert {
    condition = sort([for name, right in google_storage_bucket_iam_member.writer : name if strcontains(right.member, "-pool@")]) == tolist([
      "pool/change/answers", "pool/change/breakers", "pool/change/executables", "pool/change/failures",
      "pool/change/fingerprints", "pool/change/leases", "pool/change/rollouts", "pool/change/serving", "pool/change/targets",
      "pool/change/traffic", "pool/create/quarantine", "pool/create/wanted", "pool/remove/executables",
      "pool/remove/wanted",
    ])
    error_message = "the pool's rights are ${join(", ", [for name, right in google_storage_bucket_iam_member.writer : name if strcontains(right.member, "-pool@")])}"
  }

  assert {
    condition = google_storage_bucket_iam_member.writer["pool/change/targets"].condition[0].expression == join(" && ", [
      "resource.name.startsWith(\"projects/_/buckets/artifacts/objects/models/\")",
      "resource.name.extract(\"/targets/{name}\") != \"\"",
      "!resource.name.endsWith(\"/manifest.json\")",
      "!resource.name.endsWith(\"/serving.json\")",
    ])
    error_message = "the condition for targets is ${google_storage_bucket_iam_member.writer["pool/change/targets"].condition[0].expression}"
  }

  assert {
    condition = alltrue([
      for name, right in google_storage_bucket_iam_member.writer :
      !strcontains(right.condition[0].expression, "/objects/models/") || contains(["pool/change/targets", "pool/change/serving"], name)
      if strcontains(right.member, "-pool@")
    ])
    error_message = "another right of the pool reaches what is below models/"
  }

  assert {
    condition     = google_storage_bucket_iam_member.writer["pool/change/serving"].condition[0].expression == "resource.name.startsWith(\"projects/_/buckets/artifacts/objects/models/\") && resource.name.endsWith(\"/serving.json\")"
    error_message = "the condition for serving.json is ${google_storage_bucket_iam_member.writer["pool/change/serving"].condition[0].expression}"
  }

  assert {
    condition = alltrue([
      for name, right in google_storage_bucket_iam_member.writer : right.role == {
        create = "roles/storage.objectCreator"
        change = "roles/storage.objectUser"
        remove = "projects/some-project/roles/warmpool_test_remover"
      }[split("/", name)[1]]
    ])
    error_message = "a right has another role than its name says"
  }

  assert {
    condition     = google_project_iam_custom_role.remover.permissions == toset(["storage.objects.delete"])
    error_message = "who may remove may do more than that"
  }

  assert {
    condition     = alltrue([for right in values(google_storage_bucket_iam_member.writer) : startswith(right.condition[0].expression, "resource.name.startsWith(\"projects/_/buckets/artifacts/objects/") && strcontains(right.condition[0].expression, "/\")")])
    error_message = "a right to write is not bound to a folder"
  }

  assert {
    condition     = alltrue([for right in values(google_storage_bucket_iam_member.reader) : right.role == "roles/storage.objectViewer"])
    error_message = "who reads may do more than that"
  }

  assert {
    condition     = alltrue([for name, _ in google_storage_bucket_iam_member.writer : startswith(name, "care/remove/") || contains(["care/create/wanted", "care/create/quarantine"], name) if startswith(name, "care/")])
    error_message = "care may write more than what it asks for and what it sets aside"
  }

  assert {
    condition     = !contains(keys(google_storage_bucket_iam_member.writer), "care/remove/distrusted")
    error_message = "care may give back trust that was taken away"
  }

  # IAM takes no more conditional grants of one role to one member in one policy.
  assert {
    condition     = alltrue([for _, grants in { for name, right in google_storage_bucket_iam_member.writer : "${right.member} ${right.role}" => name... } : length(grants) <= 20])
    error_message = "a member has more than 20 conditional grants of one role"
  }
}

run "an_instance_without_a_key_leaves_word_and_writes_no_artifact" {
  command = plan

  module {
    source = "./modules/identities"
  }

  variables {
    compiles = false
    promotes = false
  }

  assert {
    condition = sort([for name, right in google_storage_bucket_iam_member.writer : name if strcontains(right.member, "-pool@")]) == tolist([
      "pool/change/fingerprints", "pool/change/rollouts", "pool/change/traffic", "pool/create/quarantine",
      "pool/create/wanted", "pool/remove/executables",
    ])
    error_message = "the pool's rights are ${join(", ", [for name, right in google_storage_bucket_iam_member.writer : name if strcontains(right.member, "-pool@")])}"
  }
}
