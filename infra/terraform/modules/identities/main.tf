# Who acts: one account for each kind of process. None of them has a role on the project, and none has a key file.

locals {
  accounts = {
    function  = "Functions: call the pool, and nothing else"
    pool      = "Instances: read artifacts, leave word, write what they compile themselves"
    publisher = "The publish job: writes models"
    care      = "Care of the store: sets aside and removes, writes no artifact"
    scheduler = "Starts the jobs that care for the store"
    notifier  = "Tells instances and functions what is new in the bucket"
  }

  # Written out, so that a plan shows who gets what before any of them is there.
  emails = { for name, account in google_service_account.this : name => "${account.account_id}@${var.project}.iam.gserviceaccount.com" }
}

resource "google_service_account" "this" {
  for_each = local.accounts

  project      = var.project
  account_id   = "warmpool-${var.env}-${each.key}"
  display_name = "warmpool ${var.env}: ${each.key}"
  description  = each.value
}

# What may be granted on a bucket to remove objects without the right to write any: no predefined role is that small.
resource "google_project_iam_custom_role" "remover" {
  project     = var.project
  role_id     = "warmpool_${var.env}_remover"
  title       = "warmpool ${var.env}: removes objects"
  description = "Granted on the artifact bucket only, for the folders that who has it may remove from"
  permissions = ["storage.objects.delete"]
}

resource "google_storage_bucket_iam_member" "reader" {
  for_each = toset(["pool", "publisher", "care"])

  bucket = var.bucket
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${local.emails[each.key]}"
}

resource "google_storage_bucket_iam_member" "writer" {
  for_each = local.grants

  bucket = var.bucket
  role   = local.roles[each.value.may]
  member = "serviceAccount:${local.emails[each.value.who]}"

  condition {
    title       = "${each.value.may} ${each.value.what}"
    description = each.value.why
    expression  = each.value.condition
  }
}

# Who deploys asks the pool as a function does, so that nobody else has to be allowed to call it. The right to make identity
# tokens alone does not do: gcloud makes an access token first where it acts as somebody else.
resource "google_service_account_iam_member" "deployer" {
  for_each = var.deployers

  service_account_id = "projects/${var.project}/serviceAccounts/${local.emails["function"]}"
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = each.value
}

resource "google_storage_bucket_iam_member" "operator" {
  for_each = var.operators

  bucket = var.bucket
  role   = "roles/storage.objectUser"
  member = each.value
}
