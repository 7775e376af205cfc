output "log_buckets" {
  description = "Ids of the log buckets by what they keep: all, audit, traces."
  value       = { for name, bucket in google_logging_project_bucket_config.this : name => bucket.id }
}
