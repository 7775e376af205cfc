variable "project" {
  description = "Id of the project."
  type        = string
}

variable "env" {
  description = "Part of the names."
  type        = string
}

variable "bucket" {
  description = "Name of the artifact bucket."
  type        = string
}

variable "compiles" {
  description = "Whether instances store what they compile themselves."
  type        = bool
}

variable "promotes" {
  description = "Whether instances change what is served."
  type        = bool
}

variable "operators" {
  description = "Members who may change everything in the bucket."
  type        = set(string)
}

variable "deployers" {
  description = "Members who may ask the pool as a function does."
  type        = set(string)
}
