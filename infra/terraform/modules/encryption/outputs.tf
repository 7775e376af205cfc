output "keys" {
  description = "Ids of the keys by what they encrypt: storage, registry, secrets, pubsub, run, logs. Known once their users may use them."
  value       = { for name, key in google_kms_crypto_key.this : name => key.id }
  depends_on  = [google_kms_crypto_key_iam_member.user]
}

output "project_number" {
  description = "Number of the project."
  value       = local.number
}

output "storage_agent" {
  description = "E-mail of the account that Cloud Storage acts as in this project."
  value       = local.users.storage
}
