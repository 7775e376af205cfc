# Where it all lies. No default: nothing is ever made in a project by accident.

variable "project" {
  description = "Id of the Google Cloud project. It has to exist, with billing."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project is '${var.project}', allowed: the id of a Google Cloud project, 6 to 30 small letters, digits and '-', such as my-project-123."
  }
}

variable "region" {
  description = "Region of everything, bucket and keys as well. With a GPU: one where Cloud Run has it."
  type        = string

  validation {
    condition     = can(regex("^(africa|asia|australia|europe|me|northamerica|southamerica|us)-(north|south|east|west|central|northeast|northwest|southeast|southwest)[1-9][0-9]?$", var.region))
    error_message = "region is '${var.region}', allowed: a region of Google Cloud (no zone, no continent), such as europe-west4."
  }
}

variable "env" {
  description = "Part of every name, so that several environments fit into one project."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9]{1,7}$", var.env))
    error_message = "env is '${var.env}', allowed: 2 to 8 small letters and digits, such as dev or prod."
  }
}

# What runs. The images are what services and jobs are made with; from then on `make deploy` says what they run, and these
# count no more. So all of it can be made before there is a registry to push an image to.

variable "instance_image" {
  description = "Image that the pool is made with: a placeholder that answers everything, unless another one is given."
  type        = string
  default     = "us-docker.pkg.dev/cloudrun/container/hello"

  validation {
    condition     = can(regex("^[a-z0-9.-]+/[^\\s:@]+(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})?$", var.instance_image))
    error_message = "instance_image is '${var.instance_image}', allowed: HOST/PATH, with :TAG or @sha256:DIGEST."
  }
}

variable "function_image" {
  description = "Image that functions are made with, as instance_image."
  type        = string
  default     = "us-docker.pkg.dev/cloudrun/container/hello"

  validation {
    condition     = can(regex("^[a-z0-9.-]+/[^\\s:@]+(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})?$", var.function_image))
    error_message = "function_image is '${var.function_image}', allowed: HOST/PATH, with :TAG or @sha256:DIGEST."
  }
}

variable "job_image" {
  description = "Image that jobs are made with, as instance_image."
  type        = string
  default     = "us-docker.pkg.dev/cloudrun/container/job"

  validation {
    condition     = can(regex("^[a-z0-9.-]+/[^\\s:@]+(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})?$", var.job_image))
    error_message = "job_image is '${var.job_image}', allowed: HOST/PATH, with :TAG or @sha256:DIGEST."
  }
}

variable "functions" {
  description = "The functions by name: the target that functions-framework serves, and the file that has it, as the image sees it."
  type = map(object({
    target = string
    source = optional(string)
  }))
  default = {}

  validation {
    condition     = alltrue([for name, _ in var.functions : can(regex("^[a-z][a-z0-9-]{0,29}[a-z0-9]$", name)) && !contains(["pool", "publish", "verify", "gc"], name)])
    error_message = "functions has ${join(", ", keys(var.functions))}, allowed: names of 2 to 31 small letters, digits and '-', and none of pool, publish, verify, gc."
  }
}

# The warm pool.

variable "instance" {
  description = "Shape of an instance, and of the publish job, so that both have the same fingerprint: cpus, memory in GiB, and a GPU or null."
  type = object({
    cpu        = number
    memory_gib = number
    gpu        = optional(string)
  })
  default = { cpu = 4, memory_gib = 8 }

  validation {
    condition     = contains([1, 2, 4, 6, 8], var.instance.cpu)
    error_message = "instance.cpu is ${var.instance.cpu}, allowed: 1, 2, 4, 6 or 8."
  }

  validation {
    condition     = floor(var.instance.memory_gib) == var.instance.memory_gib && var.instance.memory_gib >= (var.instance.cpu > 4 ? 4 : 2) && var.instance.memory_gib <= 4 * var.instance.cpu
    error_message = "instance.memory_gib is ${var.instance.memory_gib}, allowed: a whole number from 2 (with more than 4 cpus: from 4) to 4 for each cpu, as Cloud Run has it."
  }

  validation {
    condition     = var.instance.gpu == null ? true : var.instance.gpu == "nvidia-l4" && var.instance.cpu >= 4 && var.instance.memory_gib >= 16
    error_message = "instance.gpu is '${coalesce(var.instance.gpu, "null")}' with ${var.instance.cpu} cpus and ${var.instance.memory_gib} GiB, allowed: null, or nvidia-l4 with at least 4 cpus and 16 GiB."
  }
}

variable "instances_min" {
  description = "Instances that are always warm: the size of the warm pool."
  type        = number
  default     = 1

  validation {
    condition     = var.instances_min >= 0 && var.instances_min <= 100 && floor(var.instances_min) == var.instances_min
    error_message = "instances_min is ${var.instances_min}, allowed: a whole number from 0 to 100."
  }
}

variable "instances_max" {
  description = "Instances at most: what bounds the bill."
  type        = number
  default     = 4

  validation {
    condition     = var.instances_max >= max(1, var.instances_min) && var.instances_max <= 100 && floor(var.instances_max) == var.instances_max
    error_message = "instances_max is ${var.instances_max}, allowed: a whole number from instances_min (${var.instances_min}), at least 1, to 100."
  }
}

variable "concurrency" {
  description = "Requests that Cloud Run gives an instance at a time before it starts another one. Batches are made of these."
  type        = number
  default     = 80

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000 && floor(var.concurrency) == var.concurrency
    error_message = "concurrency is ${var.concurrency}, allowed: a whole number from 1 to 1000."
  }
}

variable "request_s_max" {
  description = "Seconds that a request may take at most, in functions and pool."
  type        = number
  default     = 60

  validation {
    condition     = var.request_s_max >= 1 && var.request_s_max <= 3600 && floor(var.request_s_max) == var.request_s_max
    error_message = "request_s_max is ${var.request_s_max}, allowed: a whole number of seconds from 1 to 3600."
  }
}

variable "compiles" {
  description = "Whether instances compile for themselves what the store lacks. They get a signing key and the right to write executables then."
  type        = bool
  default     = true
}

variable "promotes" {
  description = "Whether instances make a canary stable by themselves. They get the right to write serving.json then; it needs their signing key, so `compiles` as well."
  type        = bool
  default     = false

  validation {
    condition     = !var.promotes || var.compiles
    error_message = "promotes is true and compiles is false: without a signing key an instance can promote nothing."
  }
}

variable "otlp_endpoint" {
  description = "Base URL of an OTLP/HTTP collector that traces go to, in the VPC network of this module. Empty: to a log bucket of their own."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(https?://[^\\s/?#@]+(/[^\\s?#]*)?)?$", var.otlp_endpoint))
    error_message = "otlp_endpoint is '${var.otlp_endpoint}', allowed: http://HOST[:PORT][/PATH] or the same with https, or nothing."
  }
}

variable "trace_share" {
  description = "Share of the requests whose traces leave functions and instances; what was cold does whatever this is."
  type        = number
  default     = 0.05

  validation {
    condition     = var.trace_share >= 0 && var.trace_share <= 1
    error_message = "trace_share is ${var.trace_share}, allowed: 0 to 1."
  }
}
