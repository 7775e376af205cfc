output "jobs" {
  description = "Names of the jobs by command: verify, gc."
  value       = { for command, job in google_cloud_run_v2_job.this : command => job.name }
}
