variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of bucket and topic."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "storage_key" {
  description = "Id of the key that the bucket is encrypted with."
  type        = string
}

variable "pubsub_key" {
  description = "Id of the key that the topic is encrypted with."
  type        = string
}

variable "storage_agent" {
  description = "E-mail of the account that Cloud Storage acts as in this project."
  type        = string
}

variable "deletion_protection" {
  description = "Whether a bucket that is not empty withstands `terraform destroy`."
  type        = bool
}

variable "noncurrent_days" {
  description = "Days that a replaced or deleted object can still be brought back."
  type        = number
}
