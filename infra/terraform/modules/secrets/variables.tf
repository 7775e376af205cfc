variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region that secrets are kept in."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "key" {
  description = "Id of the key that secrets are encrypted with."
  type        = string
}

variable "emails" {
  description = "E-mails of the accounts by name: pool, publisher and care are used."
  type        = map(string)
}

variable "compiles" {
  description = "Whether instances have a key that signs."
  type        = bool
}

variable "deletion_protection" {
  description = "Whether secrets withstand `terraform destroy`."
  type        = bool
}
