output "job" {
  description = "Name of the job."
  value       = google_cloud_run_v2_job.publish.name
}
