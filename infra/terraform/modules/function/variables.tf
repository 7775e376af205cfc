variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the functions."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "image" {
  description = "Image that functions are made with."
  type        = string
}

variable "functions" {
  description = "The functions by name: the target that functions-framework serves, and the file that has it."
  type = map(object({
    target = string
    source = optional(string)
  }))
}

variable "ingress" {
  description = "From where functions can be reached, as Cloud Run names it."
  type        = string
}

variable "invokers" {
  description = "Members who may call the functions."
  type        = set(string)
}

variable "event_function" {
  description = "Name of the function that is told of every object that is finalised, or null."
  type        = string
  default     = null
}

variable "pool_url" {
  description = "URL of the pool."
  type        = string
}

variable "topic" {
  description = "Id of the topic that is told of every object that is finalised."
  type        = string
}

variable "emails" {
  description = "E-mails of the accounts by name: function and notifier are used."
  type        = map(string)
}

variable "instances_max" {
  description = "Instances of a function at most."
  type        = number
}

variable "concurrency" {
  description = "Requests that an instance of a function gets at a time."
  type        = number
}

variable "request_s_max" {
  description = "Seconds that a request may take."
  type        = number
}

variable "otlp_endpoint" {
  description = "Base URL of an OTLP/HTTP collector, empty for spans as lines of the log."
  type        = string
}

variable "trace_share" {
  description = "Share of the traces that is kept, 0 to 1."
  type        = number
}

variable "key" {
  description = "Id of the key that images and files of functions are encrypted with."
  type        = string
}

variable "network" {
  description = "Id of the network that functions send from."
  type        = string
}

variable "subnet" {
  description = "Id of its subnet."
  type        = string
}

variable "deletion_protection" {
  description = "Whether functions withstand `terraform destroy`."
  type        = bool
}
