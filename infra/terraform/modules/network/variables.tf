variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the subnet."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "cidr" {
  description = "Addresses of the subnet."
  type        = string
}
