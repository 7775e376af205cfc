output "project" {
  description = "Id of the project."
  value       = module.warmpool.project
}

output "region" {
  description = "Region of everything."
  value       = module.warmpool.region
}

output "bucket" {
  description = "URI of the store: gs://BUCKET."
  value       = module.warmpool.bucket
}

output "registry" {
  description = "What images are pushed to: HOST/PROJECT/REPOSITORY."
  value       = module.warmpool.registry
}

output "pool_service" {
  description = "Name of the pool's Cloud Run service."
  value       = module.warmpool.pool_service
}

output "pool_url" {
  description = "URL of the pool, which only what is inside reaches."
  value       = module.warmpool.pool_url
}

output "publish_job" {
  description = "Name of the job that publishes, and compiles what is missing."
  value       = module.warmpool.publish_job
}

output "care_jobs" {
  description = "Names of the jobs that care for the store, by command."
  value       = module.warmpool.care_jobs
}

output "function_names" {
  description = "Names of the functions' Cloud Run services, by function."
  value       = module.warmpool.function_names
}

output "function_urls" {
  description = "URLs of the functions, by function."
  value       = module.warmpool.function_urls
}

output "function_service_account" {
  description = "E-mail of the account that functions act as."
  value       = module.warmpool.function_service_account
}

output "pool_service_account" {
  description = "E-mail of the account that instances act as."
  value       = module.warmpool.pool_service_account
}

output "publisher_service_account" {
  description = "E-mail of the account that the publish job acts as."
  value       = module.warmpool.publisher_service_account
}

output "secrets" {
  description = "Ids of the secrets by what they hold: trusted-keys, publisher-signing-key, worker-signing-key."
  value       = module.warmpool.secrets
}
