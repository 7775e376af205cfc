variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the repository."
  type        = string
}

variable "env" {
  description = "Part of the name."
  type        = string
}

variable "key" {
  description = "Id of the key that images are encrypted with."
  type        = string
}
