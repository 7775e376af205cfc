# What is kept, for how long, and what may be deleted.

variable "deletion_protection" {
  description = "Whether services, jobs, keys and the bucket withstand `terraform destroy` until this is false."
  type        = bool
  default     = true
}

variable "noncurrent_days" {
  description = "Days that a replaced or deleted object of the bucket can still be brought back."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 7 && var.noncurrent_days <= 90 && floor(var.noncurrent_days) == var.noncurrent_days
    error_message = "noncurrent_days is ${var.noncurrent_days}, allowed: a whole number from 7 to 90."
  }
}

variable "log_days" {
  description = "Days that logs are kept; those of who did what to the store (publish, promote, load, refuse, ...) apart, and traces."
  type = object({
    all    = number
    audit  = number
    traces = number
  })
  default = { all = 30, audit = 400, traces = 30 }

  validation {
    condition     = alltrue([for days in values(var.log_days) : days >= 1 && days <= 3650 && floor(days) == days])
    error_message = "log_days has ${join(", ", values(var.log_days))}, allowed: whole numbers from 1 to 3650."
  }
}

# Care and cost.

variable "care_schedules" {
  description = "When the store is verified and swept (unix-cron, in UTC)."
  type = object({
    verify = string
    gc     = string
  })
  default = { verify = "17 3 * * *", gc = "47 4 * * 0" }

  validation {
    condition     = alltrue([for schedule in values(var.care_schedules) : can(regex("^([0-9*/,-]+ ){4}[0-9*/,-]+$", schedule))])
    error_message = "care_schedules has '${join("', '", values(var.care_schedules))}', allowed: five fields of unix-cron, such as '17 3 * * *'."
  }
}

variable "billing_account" {
  description = "Id of the billing account, for the budget. Null: no budget is made."
  type        = string
  default     = null

  validation {
    condition     = var.billing_account == null ? true : can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.billing_account))
    error_message = "billing_account is '${coalesce(var.billing_account, "null")}', allowed: an id such as 0123AB-CDEF01-234567, or null."
  }
}

variable "budget" {
  description = "What a month may cost before people are told: whole units of a currency, which has to be that of the billing account."
  type = object({
    amount   = number
    currency = string
  })
  default = { amount = 200, currency = "EUR" }

  validation {
    condition     = var.budget.amount >= 1 && floor(var.budget.amount) == var.budget.amount && can(regex("^[A-Z]{3}$", var.budget.currency))
    error_message = "budget is ${var.budget.amount} '${var.budget.currency}', allowed: a whole amount from 1, and three capital letters such as EUR."
  }
}

variable "alert_emails" {
  description = "Who is told of the budget, beside the billing account's administrators: at most 5 addresses."
  type        = set(string)
  default     = []

  validation {
    condition     = length(var.alert_emails) <= 5 && alltrue([for address in var.alert_emails : can(regex("^[^\\s@]+@[^\\s@]+\\.[^\\s@]+$", address))])
    error_message = "alert_emails has ${join(", ", var.alert_emails)}, allowed: at most 5 mail addresses."
  }
}
