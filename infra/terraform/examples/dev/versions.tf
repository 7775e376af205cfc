terraform {
  required_version = ">= 1.9, < 2"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50, < 8"
    }
  }
}

# The project that is asked is the one that is changed, where an interface counts calls by project.
provider "google" {
  project               = var.project
  region                = var.region
  billing_project       = var.project
  user_project_override = true

  default_labels = {
    app = "warmpool"
    env = "dev"
  }
}
