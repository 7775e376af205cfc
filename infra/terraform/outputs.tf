output "project" {
  description = "Id of the project."
  value       = var.project
}

output "region" {
  description = "Region of everything."
  value       = var.region
}

output "bucket" {
  description = "URI of the store: gs://BUCKET."
  value       = "gs://${module.storage.bucket}"
}

output "registry" {
  description = "What images are pushed to: HOST/PROJECT/REPOSITORY."
  value       = module.registry.url
}

output "pool_service" {
  description = "Name of the pool's Cloud Run service."
  value       = module.pool.service
}

output "pool_url" {
  description = "URL of the pool, which only what is inside reaches."
  value       = module.pool.url
}

output "publish_job" {
  description = "Name of the job that publishes, and compiles what is missing."
  value       = module.publisher.job
}

output "care_jobs" {
  description = "Names of the jobs that care for the store, by command."
  value       = module.care.jobs
}

output "function_names" {
  description = "Names of the functions' Cloud Run services, by function."
  value       = module.function.names
}

output "function_urls" {
  description = "URLs of the functions, by function."
  value       = module.function.urls
}

output "function_service_account" {
  description = "E-mail of the account that functions act as."
  value       = module.identities.emails["function"]
}

output "pool_service_account" {
  description = "E-mail of the account that instances act as."
  value       = module.identities.emails["pool"]
}

output "publisher_service_account" {
  description = "E-mail of the account that the publish job acts as."
  value       = module.identities.emails["publisher"]
}

output "secrets" {
  description = "Ids of the secrets by what they hold: trusted-keys, publisher-signing-key, worker-signing-key."
  value       = module.secrets.ids
}

output "log_buckets" {
  description = "Ids of the log buckets by what they keep."
  value       = module.observability.log_buckets
}
