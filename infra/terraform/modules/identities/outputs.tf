output "emails" {
  description = "E-mails of the accounts by name: function, pool, publisher, care, scheduler, notifier."
  value       = local.emails
  depends_on  = [google_storage_bucket_iam_member.reader, google_storage_bucket_iam_member.writer]
}

output "grants" {
  description = "Who may do what on which objects of the bucket: WHO/MAY/WHAT, with the condition that says so."
  value       = local.grants
}
