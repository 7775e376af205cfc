output "ids" {
  description = "Ids of the secrets by what they hold: trusted-keys, publisher-signing-key, worker-signing-key. Known once their readers may read them."
  value       = { for name, secret in google_secret_manager_secret.this : name => secret.secret_id }
  depends_on  = [google_secret_manager_secret_iam_member.reader, google_secret_manager_secret_version.none]
}
