variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the jobs."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "image" {
  description = "Image that the jobs are made with."
  type        = string
}

variable "bucket" {
  description = "Name of the artifact bucket."
  type        = string
}

variable "emails" {
  description = "E-mails of the accounts by name: care and scheduler are used."
  type        = map(string)
}

variable "secrets" {
  description = "Ids of the secrets by what they hold: trusted-keys is used."
  type        = map(string)
}

variable "schedules" {
  description = "When each job runs, verify and gc (unix-cron, in UTC)."
  type        = map(string)
}

variable "key" {
  description = "Id of the key that the jobs' image and files are encrypted with."
  type        = string
}

variable "network" {
  description = "Id of the network that the jobs send from."
  type        = string
}

variable "subnet" {
  description = "Id of its subnet."
  type        = string
}

variable "deletion_protection" {
  description = "Whether the jobs withstand `terraform destroy`."
  type        = bool
}
