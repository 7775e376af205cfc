variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the keys: that of all they encrypt."
  type        = string
}

variable "env" {
  description = "Part of the key ring's name."
  type        = string
}
