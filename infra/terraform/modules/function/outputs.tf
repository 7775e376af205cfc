output "names" {
  description = "Names of the services by function."
  value       = { for name, service in google_cloud_run_v2_service.this : name => service.name }
}

output "urls" {
  description = "URLs of the functions."
  value       = { for name, service in google_cloud_run_v2_service.this : name => service.uri }
}
