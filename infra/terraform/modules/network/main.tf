# A network from which nothing can be reached but Google's own services, by their private addresses, and what is put into
# it. There is no way in.

locals {
  google_addresses = ["199.36.153.8", "199.36.153.9", "199.36.153.10", "199.36.153.11"] # private.googleapis.com
  google_range     = "199.36.153.8/30"

  # run.app: that is how a function calls the pool, whose ingress is internal.
  domains = {
    googleapis = "googleapis.com."
    run        = "run.app."
  }
}

resource "google_compute_network" "this" {
  project                         = var.project
  name                            = "warmpool-${var.env}"
  auto_create_subnetworks         = false
  delete_default_routes_on_create = true
}

resource "google_compute_subnetwork" "this" {
  project                  = var.project
  name                     = "warmpool-${var.env}"
  region                   = var.region
  network                  = google_compute_network.this.id
  ip_cidr_range            = var.cidr
  private_ip_google_access = true

  log_config {
    aggregation_interval = "INTERVAL_10_MIN"
    flow_sampling        = 0.1
    metadata             = "INCLUDE_ALL_METADATA"
  }
}

resource "google_compute_route" "google" {
  project          = var.project
  name             = "warmpool-${var.env}-google"
  network          = google_compute_network.this.id
  dest_range       = local.google_range
  next_hop_gateway = "default-internet-gateway"
}

resource "google_compute_firewall" "deny" {
  project            = var.project
  name               = "warmpool-${var.env}-deny"
  network            = google_compute_network.this.id
  direction          = "EGRESS"
  priority           = 65000
  destination_ranges = ["0.0.0.0/0"]

  deny {
    protocol = "all"
  }

  log_config {
    metadata = "INCLUDE_ALL_METADATA"
  }
}

resource "google_compute_firewall" "allow" {
  project            = var.project
  name               = "warmpool-${var.env}-allow"
  network            = google_compute_network.this.id
  direction          = "EGRESS"
  priority           = 1000
  destination_ranges = [local.google_range, var.cidr]

  allow {
    protocol = "tcp"
    ports    = ["443", "4318"] # Google's services; an OTLP collector in the subnet
  }
}

resource "google_dns_managed_zone" "google" {
  for_each = local.domains

  project     = var.project
  name        = "warmpool-${var.env}-${each.key}"
  dns_name    = each.value
  description = "Google's private addresses for ${each.value}"
  visibility  = "private"

  private_visibility_config {
    networks {
      network_url = google_compute_network.this.id
    }
  }
}

resource "google_dns_record_set" "address" {
  for_each = local.domains

  project      = var.project
  managed_zone = google_dns_managed_zone.google[each.key].name
  name         = each.key == "googleapis" ? "private.${each.value}" : each.value
  type         = "A"
  ttl          = 300
  rrdatas      = local.google_addresses
}

resource "google_dns_record_set" "names" {
  for_each = local.domains

  project      = var.project
  managed_zone = google_dns_managed_zone.google[each.key].name
  name         = "*.${each.value}"
  type         = "CNAME"
  ttl          = 300
  rrdatas      = [google_dns_record_set.address[each.key].name]
}
