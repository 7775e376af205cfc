output "network" {
  description = "Id of the network."
  value       = google_compute_network.this.id
}

output "subnet" {
  description = "Id of the subnet. Known once names, routes and rules are there."
  value       = google_compute_subnetwork.this.id
  depends_on  = [google_compute_route.google, google_compute_firewall.allow, google_dns_record_set.names]
}
