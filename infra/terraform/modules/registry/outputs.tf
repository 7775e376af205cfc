output "url" {
  description = "What images are pushed to: HOST/PROJECT/REPOSITORY."
  value       = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}
