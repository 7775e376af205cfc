output "bucket" {
  description = "Name of the artifact bucket."
  value       = google_storage_bucket.artifacts.name
}

output "topic" {
  description = "Id of the topic that is told of every object that is finalised."
  value       = google_pubsub_topic.artifacts.id
}
