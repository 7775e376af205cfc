variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Region of the job."
  type        = string
}

variable "env" {
  description = "Part of the name."
  type        = string
}

variable "image" {
  description = "Image that the job is made with."
  type        = string
}

variable "instance" {
  description = "Shape of an instance of the pool: cpus, memory in GiB, a GPU or null."
  type = object({
    cpu        = number
    memory_gib = number
    gpu        = optional(string)
  })
}

variable "bucket" {
  description = "Name of the artifact bucket."
  type        = string
}

variable "email" {
  description = "E-mail of the account that the job acts as."
  type        = string
}

variable "secrets" {
  description = "Ids of the secrets by what they hold: trusted-keys and publisher-signing-key are used."
  type        = map(string)
}

variable "key" {
  description = "Id of the key that the job's image and files are encrypted with."
  type        = string
}

variable "network" {
  description = "Id of the network that the job sends from."
  type        = string
}

variable "subnet" {
  description = "Id of its subnet."
  type        = string
}

variable "deletion_protection" {
  description = "Whether the job withstands `terraform destroy`."
  type        = bool
}
