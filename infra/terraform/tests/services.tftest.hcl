# What runs behind functions: the pool, the publish job, care, and the network that they are in.

mock_provider "google" {}

variables {
  project             = "some-project"
  region              = "europe-west4"
  env                 = "test"
  image               = "example.com/instance:abc"
  instance            = { cpu = 4, memory_gib = 8 }
  instances_min       = 2
  instances_max       = 5
  concurrency         = 100
  request_s_max       = 60
  compiles            = true
  otlp_endpoint       = ""
  bucket              = "artifacts"
  topic               = "projects/some-project/topics/artifacts"
  key                 = "projects/p/locations/l/keyRings/r/cryptoKeys/run"
  network             = "network"
  subnet              = "subnet"
  deletion_protection = true
  email               = "publisher@example.com"
  emails = {
    function = "function@example.com", pool = "pool@example.com", publisher = "publisher@example.com"
    care     = "care@example.com", scheduler = "scheduler@example.com", notifier = "notifier@example.com"
  }
  secrets = { trusted-keys = "trusted", publisher-signing-key = "publisher", worker-signing-key = "worker" }
}

run "the_pool_is_warm_private_and_probed_where_it_answers" {
  command = plan

  module {
    source = "./modules/pool"
  }

  assert {
    condition     = google_cloud_run_v2_service.pool.ingress == "INGRESS_TRAFFIC_INTERNAL_ONLY" && google_cloud_run_v2_service.pool.template[0].vpc_access[0].egress == "ALL_TRAFFIC"
    error_message = "the pool can be reached from outside, or reaches it"
  }

  assert {
    condition     = { for name, right in google_cloud_run_v2_service_iam_member.invoker : name => "${right.role} ${right.member}" } == { function = "roles/run.invoker serviceAccount:function@example.com", notifier = "roles/run.invoker serviceAccount:notifier@example.com" }
    error_message = "somebody else than functions and notifications may call the pool"
  }

  assert {
    condition     = google_cloud_run_v2_service.pool.template[0].scaling[0].min_instance_count == 2 && google_cloud_run_v2_service.pool.template[0].scaling[0].max_instance_count == 5 && google_cloud_run_v2_service.pool.template[0].max_instance_request_concurrency == 100
    error_message = "the pool has another size than was asked for"
  }

  assert {
    condition     = google_cloud_run_v2_service.pool.template[0].containers[0].startup_probe[0].http_get[0].path == "/v1/started" && google_cloud_run_v2_service.pool.template[0].containers[0].liveness_probe[0].http_get[0].path == "/v2/health/live"
    error_message = "the pool is probed elsewhere than it answers"
  }

  assert {
    condition     = !google_cloud_run_v2_service.pool.template[0].containers[0].resources[0].cpu_idle && google_cloud_run_v2_service.pool.template[0].containers[0].resources[0].startup_cpu_boost
    error_message = "an instance has no cpu between requests, or no boost at its start"
  }

  assert {
    condition     = google_cloud_run_v2_service.pool.template[0].encryption_key == var.key && google_cloud_run_v2_service.pool.template[0].service_account == "pool@example.com" && google_cloud_run_v2_service.pool.deletion_protection
    error_message = "the pool is not encrypted with our key, acts as somebody else, or is not protected"
  }

  assert {
    condition     = length(google_cloud_run_v2_service.pool.template[0].node_selector) == 0 && google_cloud_run_v2_service.pool.template[0].containers[0].resources[0].limits == tomap({ cpu = "4", memory = "8Gi" })
    error_message = "an instance has another shape than was asked for"
  }

  assert {
    condition = { for one in google_cloud_run_v2_service.pool.template[0].containers[0].env : one.name => one.value } == {
      WARMPOOL_STORE                    = "gs://artifacts"
      WARMPOOL_HOST                     = "0.0.0.0"
      WARMPOOL_GRPC_PORT                = "0"
      WARMPOOL_ACCELERATOR              = "none"
      WARMPOOL_TRUSTED_KEYS             = "/keys/publisher.pub"
      WARMPOOL_SIGNING_KEY              = "/signing/worker.pem"
      WARMPOOL_AUDIT_LOG                = "-"
      WARMPOOL_CACHE_FOLDER             = "/cache"
      WARMPOOL_CACHE_BYTES_MAX          = "2040109465"
      WARMPOOL_DEADLINE_MS              = "30000"
      WARMPOOL_BODY_BYTES_MAX           = "33554432"
      WARMPOOL_QUEUE_BYTES_MAX          = "1073741824"
      WARMPOOL_QUEUE_ROWS_MAX           = "4096"
      WARMPOOL_COMPILE                  = "auto"
      WARMPOOL_COMPILE_MEMORY_BYTES_MAX = "2147483648"
      WARMPOOL_OTLP_ENDPOINT            = "-"
    }
    error_message = "an instance is told ${jsonencode({ for one in google_cloud_run_v2_service.pool.template[0].containers[0].env : one.name => one.value })}"
  }

  assert {
    condition     = { for one in google_cloud_run_v2_service.pool.template[0].volumes : one.name => one.secret[0].secret if length(one.secret) > 0 } == { keys = "trusted", signing = "worker" }
    error_message = "an instance is given other secrets than its own"
  }

  assert {
    condition     = google_pubsub_subscription.changed.push_config[0].oidc_token[0].service_account_email == "notifier@example.com" && google_pubsub_subscription.changed.filter == "hasPrefix(attributes.objectId, \"models/\")"
    error_message = "instances are told by nobody, or of everything"
  }
}

run "the_pool_has_a_gpu_and_no_key_that_signs_where_that_is_asked_for" {
  command = plan

  module {
    source = "./modules/pool"
  }

  variables {
    instance      = { cpu = 8, memory_gib = 32, gpu = "nvidia-l4" }
    compiles      = false
    otlp_endpoint = "http://collector:4318"
  }

  assert {
    condition     = google_cloud_run_v2_service.pool.template[0].node_selector[0].accelerator == "nvidia-l4" && google_cloud_run_v2_service.pool.template[0].containers[0].resources[0].limits["nvidia.com/gpu"] == "1" && google_cloud_run_v2_service.pool.template[0].gpu_zonal_redundancy_disabled
    error_message = "an instance has no GPU"
  }

  assert {
    condition     = contains([for one in google_cloud_run_v2_service.pool.template[0].containers[0].env : "${one.name}=${one.value}"], "WARMPOOL_ACCELERATOR=jax")
    error_message = "an instance does not look for its GPU"
  }

  assert {
    condition     = [for one in google_cloud_run_v2_service.pool.template[0].volumes : one.secret[0].secret if length(one.secret) > 0] == ["trusted"]
    error_message = "an instance is given a key that signs"
  }

  assert {
    condition     = alltrue([for one in google_cloud_run_v2_service.pool.template[0].containers[0].env : one.name != "WARMPOOL_SIGNING_KEY" && (one.name != "WARMPOOL_COMPILE" || one.value == "off")])
    error_message = "an instance is told to sign, or to compile"
  }

  assert {
    condition     = contains([for one in google_cloud_run_v2_service.pool.template[0].containers[0].env : "${one.name}=${one.value}"], "WARMPOOL_OTLP_ENDPOINT=http://collector:4318")
    error_message = "an instance is not told where traces go"
  }
}

run "the_publish_job_has_the_shape_of_an_instance" {
  command = plan

  module {
    source = "./modules/publisher"
  }

  variables {
    instance = { cpu = 8, memory_gib = 32, gpu = "nvidia-l4" }
  }

  # The same as the pool's two runs above, of the same variable.
  assert {
    condition     = google_cloud_run_v2_job.publish.template[0].template[0].node_selector[0].accelerator == "nvidia-l4" && google_cloud_run_v2_job.publish.template[0].template[0].containers[0].resources[0].limits == tomap({ cpu = "8", memory = "32Gi", "nvidia.com/gpu" = "1" })
    error_message = "the job has another shape, so another fingerprint, than an instance"
  }

  assert {
    condition     = { for one in google_cloud_run_v2_job.publish.template[0].template[0].volumes : one.name => one.secret[0].secret } == { keys = "trusted", signing = "publisher" }
    error_message = "the job is given other secrets than its own"
  }

  assert {
    condition     = google_cloud_run_v2_job.publish.template[0].template[0].service_account == "publisher@example.com" && google_cloud_run_v2_job.publish.template[0].template[0].encryption_key == var.key && google_cloud_run_v2_job.publish.deletion_protection
    error_message = "the job acts as somebody else, is not encrypted with our key, or not protected"
  }
}

run "care_is_started_by_who_may_start_it_and_nothing_else" {
  command = plan

  module {
    source = "./modules/care"
  }

  variables {
    schedules = { verify = "17 3 * * *", gc = "47 4 * * 0" }
  }

  assert {
    condition     = { for name, job in google_cloud_run_v2_job.this : name => job.template[0].template[0].containers[0].args } == { verify = tolist(["cache", "verify"]), gc = tolist(["cache", "gc"]) }
    error_message = "other commands run than verify and gc"
  }

  assert {
    condition     = alltrue([for job in values(google_cloud_run_v2_job.this) : [for one in job.template[0].template[0].volumes : one.secret[0].secret] == ["trusted"] && job.template[0].template[0].service_account == "care@example.com"])
    error_message = "care is given a key that signs, or acts as somebody else"
  }

  assert {
    condition     = { for name, job in google_cloud_scheduler_job.this : name => job.http_target[0].uri } == { for name in ["verify", "gc"] : name => "https://run.googleapis.com/v2/projects/some-project/locations/europe-west4/jobs/warmpool-test-${name}:run" }
    error_message = "something else is started"
  }

  assert {
    condition     = alltrue([for right in values(google_cloud_run_v2_job_iam_member.scheduler) : right.member == "serviceAccount:scheduler@example.com" && right.role == "roles/run.invoker"]) && alltrue([for job in values(google_cloud_scheduler_job.this) : job.http_target[0].oauth_token[0].service_account_email == "scheduler@example.com"])
    error_message = "somebody else may start the jobs, or does"
  }
}

run "from_the_network_only_googles_services_are_reached" {
  command = plan

  module {
    source = "./modules/network"
  }

  variables {
    cidr = "10.10.0.0/24"
  }

  assert {
    condition     = google_compute_network.this.delete_default_routes_on_create && google_compute_route.google.dest_range == "199.36.153.8/30"
    error_message = "there is another way out"
  }

  assert {
    condition     = google_compute_firewall.deny.destination_ranges == toset(["0.0.0.0/0"]) && google_compute_firewall.deny.priority > google_compute_firewall.allow.priority && google_compute_firewall.allow.destination_ranges == toset(["199.36.153.8/30", "10.10.0.0/24"])
    error_message = "more is allowed than Google's services and the subnet itself"
  }

  assert {
    condition     = one(google_compute_firewall.deny.deny).protocol == "all" && one(google_compute_firewall.allow.allow).protocol == "tcp" && one(google_compute_firewall.allow.allow).ports == tolist(["443", "4318"])
    error_message = "not all else is refused, or more than what is called by TLS, and a collector, is allowed"
  }

  assert {
    condition     = { for name, record in google_dns_record_set.names : record.name => record.rrdatas[0] } == { "*.googleapis.com." = "private.googleapis.com.", "*.run.app." = "run.app." }
    error_message = "Google's names lead elsewhere"
  }

  assert {
    condition     = google_compute_subnetwork.this.private_ip_google_access
    error_message = "Google's services are not reached"
  }
}
