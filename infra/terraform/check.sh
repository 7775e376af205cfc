#!/bin/sh
# What `make infra-check` runs: form, validity, tests and known weaknesses of what is written for Terraform. Nothing is asked
# of a cloud. The provider is the registry's, or a stand-in that knows its schema where the registry cannot be reached: the
# folder $TERRAFORM_GOOGLE_SCHEMA, or ../shared/tools/terraform-google-schema if that is there. With neither, form and
# weaknesses are all that is checked, which the last line says; in CI that is a failure.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tools=$root/.venv-infra
lock=requirements-infra.lock
python=${PYTHON:-python3}
schema=${TERRAFORM_GOOGLE_SCHEMA:-$root/../shared/tools/terraform-google-schema}

say() { echo "infra-check: $*" >&2; }
fail() {
  say "$*"
  exit 1
}

command -v terraform >/dev/null 2>&1 ||
  fail "terraform is not on the PATH; how to get it: https://developer.hashicorp.com/terraform/install"

terraform fmt -check -recursive "$here" >&2 || fail "these files are not formatted: terraform fmt -recursive infra/terraform"

quietly() { # what a command says is shown only if it fails
  "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2 && return 1; }
}

# A copy, so that neither plugins nor a lock file of the stand-in come between somebody and their own environments.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
tar -C "$here" --exclude .terraform --exclude .terraform.lock.hcl --exclude '*.tfstate*' --exclude '*.tfplan' -cf - . |
  (mkdir "$work/terraform" && tar -C "$work/terraform" -xf -)
cd "$work/terraform"

if [ -f "$schema/setup.sh" ]; then
  quietly env "PYTHON=$python" sh "$schema/setup.sh" "$tools/schema" || fail "the provider's stand-in in $schema cannot be set up"
  eval "$(env "PYTHON=$python" sh "$schema/setup.sh" "$tools/schema")"
elif [ -n "${TERRAFORM_GOOGLE_SCHEMA:-}" ]; then
  fail "TERRAFORM_GOOGLE_SCHEMA is $schema, allowed: a folder with setup.sh, or nothing"
else
  export TF_PLUGIN_CACHE_DIR="$tools/plugins"
  mkdir -p "$TF_PLUGIN_CACHE_DIR"
fi

if terraform init -backend=false -input=false -no-color >"$work/said" 2>&1; then
  quietly terraform validate -no-color || fail "what is written is not valid"
  quietly terraform test -no-color || fail "a test failed"
  told="It is valid. $(tail -n 1 "$work/said")"
elif grep -qE 'dial tcp|no such host|[Tt]imeout|connection re' "$work/said"; then
  told="NOT validated, NOT tested: the registry of providers cannot be reached, and there is no stand-in in $schema"
  [ -z "${WARMPOOL_CI:-}" ] || fail "$told"
else
  cat "$work/said" >&2
  fail "terraform init failed"
fi

quietly "$python" "$root/.ci/install.py" --plain .venv-infra/trivy "$lock" || fail "what $lock names cannot be installed"
quietly "$tools/trivy/bin/trivy" config --quiet --skip-check-update --skip-version-check --exit-code 1 . || fail "trivy found weaknesses"

say "formatted, no weakness known to trivy. $told"
