variable "project" {
  description = "Id of the Google Cloud project. It has to exist, with billing."
  type        = string
}

variable "region" {
  description = "Region of everything, such as europe-west4."
  type        = string
}

variable "billing_account" {
  description = "Id of the billing account, for the budget. Null: no budget is made."
  type        = string
  default     = null
}

variable "callers" {
  description = "Who may call the functions: user:, group: or serviceAccount: members."
  type        = set(string)
  default     = []
}

variable "deployers" {
  description = "Who deploys: user:, group: or serviceAccount: members."
  type        = set(string)
  default     = []
}

variable "operators" {
  description = "People who may change everything in the artifact bucket: user: or group: members."
  type        = set(string)
  default     = []
}
