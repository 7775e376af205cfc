output "service" {
  description = "Name of the service."
  value       = google_cloud_run_v2_service.pool.name
}

output "url" {
  description = "URL of the service, which only what is inside reaches. Known once functions may call it."
  value       = google_cloud_run_v2_service.pool.uri
  depends_on  = [google_cloud_run_v2_service_iam_member.invoker]
}
