output "emails" {
  description = "E-mails of the accounts by name: function, pool, publisher, care, scheduler, notifier."
  value       = { for name, account in google_service_account.this : name => account.email }
  depends_on  = [google_storage_bucket_iam_member.reader, google_storage_bucket_iam_member.writer]
}

output "grants" {
  description = "Who may do what on which objects of the bucket: WHO/MAY/WHAT, with the condition that says so."
  value       = local.grants
}
