# Who writes what in the bucket, in one list: all conditions come from it, tests hold it against what the code writes, and
# the table in the README is this one. cache/layout.py says what lies in which folder.
#
#   create: a new object under a new name. Nothing can be replaced or removed by it.
#   change: create, replace and remove. A rewrite onto itself, which keeps an object young, is that as well.
#   remove: and nothing else.
#
# `what` is a folder of the store, or "targets" or "serving" for those documents below models/.

locals {
  always = [
    { who = "pool", may = "change", what = "fingerprints", why = "which kinds of machine are about, written once a day" },
    { who = "pool", may = "change", what = "traffic", why = "shapes that were seen, a record for each instance" },
    { who = "pool", may = "change", what = "rollouts", why = "a canary that was found bad is taken back for all, without a key" },
    { who = "pool", may = "create", what = "wanted", why = "asks for an executable" },
    { who = "pool", may = "create", what = "quarantine", why = "keeps what is set aside, and its reason" },
    { who = "pool", may = "remove", what = "executables", why = "takes away what is set aside" },

    { who = "publisher", may = "change", what = "models", why = "manifests, targets, what is served" },
    { who = "publisher", may = "change", what = "programs", why = "stores programs, and keeps reused ones young" },
    { who = "publisher", may = "change", what = "weights", why = "stores weights, and keeps reused ones young" },
    { who = "publisher", may = "change", what = "executables", why = "stores executables, and keeps reused ones young" },
    { who = "publisher", may = "change", what = "answers", why = "what plain JAX answered, to prove others with" },
    { who = "publisher", may = "change", what = "leases", why = "of several who lack the same, one makes it" },
    { who = "publisher", may = "change", what = "failures", why = "what failed to compile, and why" },
    { who = "publisher", may = "change", what = "breakers", why = "how much of a program failed" },
    { who = "publisher", may = "change", what = "rollouts", why = "begins and ends rollouts" },
    { who = "publisher", may = "remove", what = "wanted", why = "settles what was asked for" },

    { who = "care", may = "create", what = "wanted", why = "asks for what is missing or faulty" },
    { who = "care", may = "create", what = "quarantine", why = "keeps what is set aside, and its reason" },
  ]

  # All folders but two: word of machines stays, and nobody but an operator gives trust back.
  swept = [for folder in [
    "executables", "programs", "answers", "weights", "models", "jax-cache", "leases", "failures", "breakers", "wanted",
    "quarantine", "traffic", "rollouts",
  ] : { who = "care", may = "remove", what = folder, why = "removes what nothing needs, takes away what is set aside" }]

  of_compiling = [
    { who = "pool", may = "change", what = "executables", why = "stores what it compiled, and keeps reused ones young" },
    { who = "pool", may = "change", what = "answers", why = "what plain JAX answered, to prove others with" },
    { who = "pool", may = "change", what = "leases", why = "of several who lack the same, one makes it" },
    { who = "pool", may = "change", what = "failures", why = "what failed to compile, and why" },
    { who = "pool", may = "change", what = "breakers", why = "how much of a program failed" },
    { who = "pool", may = "change", what = "targets", why = "lists what it compiled for its kind of machine" },
    { who = "pool", may = "remove", what = "wanted", why = "settles what was asked for" },
  ]

  of_promoting = [
    { who = "pool", may = "change", what = "serving", why = "makes a canary stable, or takes it back" },
  ]

  rights = concat(local.always, local.swept, var.compiles ? local.of_compiling : [], var.promotes ? local.of_promoting : [])

  roles = {
    create = "roles/storage.objectCreator"
    change = "roles/storage.objectUser"
    remove = "projects/${var.project}/roles/${google_project_iam_custom_role.remover.role_id}"
  }

  objects = "projects/_/buckets/${var.bucket}/objects"

  # A target is models/MODEL/VERSION/targets/DIGEST.json. A model or a version may be called "targets" as well, so what is
  # no target is said, too.
  documents = {
    targets = join(" && ", [
      "resource.name.startsWith(\"${local.objects}/models/\")",
      "resource.name.extract(\"/targets/{name}\") != \"\"",
      "!resource.name.endsWith(\"/manifest.json\")",
      "!resource.name.endsWith(\"/serving.json\")",
    ])
    serving = join(" && ", [
      "resource.name.startsWith(\"${local.objects}/models/\")",
      "resource.name.endsWith(\"/serving.json\")",
    ])
  }

  grants = {
    for right in local.rights : "${right.who}/${right.may}/${right.what}" => merge(right, {
      condition = lookup(local.documents, right.what, "resource.name.startsWith(\"${local.objects}/${right.what}/\")")
    })
  }
}
