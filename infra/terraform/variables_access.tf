# Who may come in, and from where.

variable "function_ingress" {
  description = "From where functions can be reached; whoever comes has to be one of function_invokers as well."
  type        = string
  default     = "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"

  validation {
    condition     = contains(["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"], var.function_ingress)
    error_message = "function_ingress is '${var.function_ingress}', allowed: INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY or INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER."
  }
}

variable "function_invokers" {
  description = "Who may call the functions: user:, group: or serviceAccount: members."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.function_invokers : can(regex("^(user|group|serviceAccount):[^\\s@]+@[^\\s@]+$", member))])
    error_message = "function_invokers has ${join(", ", var.function_invokers)}, allowed: user:MAIL, group:MAIL or serviceAccount:MAIL each; never allUsers or allAuthenticatedUsers."
  }
}

variable "operators" {
  description = "People who may change everything in the artifact bucket (distrust a key, restore what was set aside): user: or group: members."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.operators : can(regex("^(user|group):[^\\s@]+@[^\\s@]+$", member))])
    error_message = "operators has ${join(", ", var.operators)}, allowed: user:MAIL or group:MAIL each."
  }
}

variable "deployers" {
  description = "Who deploys: they get identity tokens of the functions' account, to ask a new revision before it has requests. What else a deployment needs is theirs to have."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.deployers : can(regex("^(user|group|serviceAccount):[^\\s@]+@[^\\s@]+$", member))])
    error_message = "deployers has ${join(", ", var.deployers)}, allowed: user:MAIL, group:MAIL or serviceAccount:MAIL each."
  }
}

variable "event_function" {
  description = "Name of the function that is told of every object that is finalised in the bucket, by Eventarc. Null: none is."
  type        = string
  default     = null

  validation {
    condition     = var.event_function == null ? true : contains(keys(var.functions), var.event_function)
    error_message = "event_function is '${coalesce(var.event_function, "null")}', allowed: one of functions (${join(", ", keys(var.functions))}), or null."
  }
}

variable "subnet_cidr" {
  description = "Addresses of the subnet that instances, functions and jobs send from: private, a /26 or larger, for Cloud Run takes them in blocks of 16."
  type        = string
  default     = "10.10.0.0/24"

  validation {
    condition     = can(cidrhost(var.subnet_cidr, 0)) && can(regex("^(10|172\\.(1[6-9]|2[0-9]|3[01])|192\\.168)\\..*/([89]|1[0-9]|2[0-6])$", var.subnet_cidr))
    error_message = "subnet_cidr is '${var.subnet_cidr}', allowed: a private IPv4 range from /8 to /26, such as 10.10.0.0/24."
  }
}
