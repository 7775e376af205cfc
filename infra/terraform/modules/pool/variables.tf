variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the service."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "image" {
  description = "Image that the service is made with."
  type        = string
}

variable "instance" {
  description = "Shape of an instance: cpus, memory in GiB, a GPU or null."
  type = object({
    cpu        = number
    memory_gib = number
    gpu        = optional(string)
  })
}

variable "instances_min" {
  description = "Instances that are always warm."
  type        = number
}

variable "instances_max" {
  description = "Instances at most."
  type        = number
}

variable "concurrency" {
  description = "Requests that an instance gets at a time."
  type        = number
}

variable "request_s_max" {
  description = "Seconds that a request may take."
  type        = number
}

variable "compiles" {
  description = "Whether instances compile for themselves."
  type        = bool
}

variable "otlp_endpoint" {
  description = "Base URL of an OTLP/HTTP collector, empty for spans as lines of the log."
  type        = string
}

variable "bucket" {
  description = "Name of the artifact bucket."
  type        = string
}

variable "topic" {
  description = "Id of the topic that is told of every object that is finalised."
  type        = string
}

variable "emails" {
  description = "E-mails of the accounts by name: pool, function and notifier are used."
  type        = map(string)
}

variable "secrets" {
  description = "Ids of the secrets by what they hold: trusted-keys and worker-signing-key are used."
  type        = map(string)
}

variable "key" {
  description = "Id of the key that images and files of instances are encrypted with."
  type        = string
}

variable "network" {
  description = "Id of the network that instances send from."
  type        = string
}

variable "subnet" {
  description = "Id of its subnet."
  type        = string
}

variable "deletion_protection" {
  description = "Whether the service withstands `terraform destroy`."
  type        = bool
}
