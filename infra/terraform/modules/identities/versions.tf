terraform {
  required_version = ">= 1.9, < 2"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50, < 8"
    }
  }
}
