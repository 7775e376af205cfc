variable "project" {
  description = "Id of the project."
  type        = string
}

variable "project_number" {
  description = "Number of the project, which is how a budget names it."
  type        = string
}

variable "region" {
  description = "Region that logs are kept in."
  type        = string
}

variable "env" {
  description = "Part of the names; logs of services and jobs that are called so are kept."
  type        = string
}

variable "key" {
  description = "Id of the key that logs are encrypted with."
  type        = string
}

variable "days" {
  description = "Days that logs are kept: all, audit, and traces."
  type = object({
    all    = number
    audit  = number
    traces = number
  })
}

variable "billing_account" {
  description = "Id of the billing account, or null for no budget."
  type        = string
  default     = null
}

variable "budget" {
  description = "What a month may cost: whole units of a currency."
  type = object({
    amount   = number
    currency = string
  })
}

variable "alert_emails" {
  description = "Who is told of the budget."
  type        = set(string)
}
