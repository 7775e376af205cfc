# Where logs and traces go, and who hears of the bill. Functions and instances write each span as a line of their log, for
# which nobody needs a role: Cloud Trace takes spans only from who has one on the whole project.

locals {
  spans      = "jsonPayload.context.trace_id:* AND jsonPayload.start_time:*"
  everything = "(resource.type=\"cloud_run_revision\" OR resource.type=\"cloud_run_job\") AND (resource.labels.service_name=~\"^warmpool-${var.env}-\" OR resource.labels.job_name=~\"^warmpool-${var.env}-\")"

  sinks = {
    all = {
      days   = var.days.all
      filter = "${local.everything} AND NOT (${local.spans})"
    }
    # Lines of an audit log: what was published, promoted, loaded, refused, set aside or distrusted, and by whom.
    audit = {
      days   = var.days.audit
      filter = "${local.everything} AND jsonPayload.event:* AND jsonPayload.who:*"
    }
    traces = {
      days   = var.days.traces
      filter = "${local.everything} AND ${local.spans}"
    }
  }
}

resource "google_logging_project_bucket_config" "this" {
  for_each = local.sinks

  project        = var.project
  location       = var.region
  bucket_id      = "warmpool-${var.env}-${each.key}"
  retention_days = each.value.days
  description    = "warmpool ${var.env}: ${each.key}"

  cmek_settings {
    kms_key_name = var.key
  }
}

# To a log bucket of the same project a sink writes without an account of its own.
resource "google_logging_project_sink" "this" {
  for_each = local.sinks

  project                = var.project
  name                   = "warmpool-${var.env}-${each.key}"
  description            = "warmpool ${var.env}: ${each.key}"
  destination            = "logging.googleapis.com/projects/${var.project}/locations/${var.region}/buckets/${google_logging_project_bucket_config.this[each.key].bucket_id}"
  filter                 = each.value.filter
  unique_writer_identity = true
}

# What every project keeps of its logs anyway (its sink _Default) does without spans: they would be paid for twice.
resource "google_logging_project_exclusion" "traces" {
  project     = var.project
  name        = "warmpool-${var.env}-traces"
  description = "warmpool ${var.env}: spans are kept in a bucket of their own"
  filter      = local.sinks.traces.filter
}

resource "google_monitoring_notification_channel" "email" {
  for_each = var.billing_account == null ? [] : var.alert_emails

  project      = var.project
  display_name = "warmpool ${var.env}: ${each.value}"
  type         = "email"
  labels       = { email_address = each.value }
}

resource "google_billing_budget" "this" {
  count = var.billing_account == null ? 0 : 1

  billing_account = var.billing_account
  display_name    = "warmpool ${var.env}"

  budget_filter {
    projects        = ["projects/${var.project_number}"]
    calendar_period = "MONTH"
  }

  amount {
    specified_amount {
      currency_code = var.budget.currency
      units         = tostring(var.budget.amount)
    }
  }

  dynamic "threshold_rules" {
    for_each = [0.5, 0.9, 1.0]

    content {
      threshold_percent = threshold_rules.value
      spend_basis       = "CURRENT_SPEND"
    }
  }

  threshold_rules {
    threshold_percent = 1.0
    spend_basis       = "FORECASTED_SPEND"
  }

  dynamic "all_updates_rule" {
    for_each = length(var.alert_emails) > 0 ? [1] : []

    content {
      monitoring_notification_channels = [for channel in google_monitoring_notification_channel.email : channel.id]
      disable_default_iam_recipients   = false
    }
  }
}
