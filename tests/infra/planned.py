"""A copy of what is written for Terraform, with a provider, and runs that plan both examples."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ROOT / "infra" / "terraform"
STAND_IN = Path(
    os.environ.get("TERRAFORM_GOOGLE_SCHEMA") or ROOT.parent / "shared" / "tools" / "terraform-google-schema"
)
RUNS = """
mock_provider "google" {}

variables {
  project = "some-project"
  region  = "europe-west4"
}

run "prod" {
  command = plan

  module {
    source = "./examples/prod"
  }

  variables {
    billing_account = "0123AB-CDEF01-234567"
    callers         = ["group:callers@example.com"]
    operators       = ["group:operators@example.com"]
    deployers       = ["group:deployers@example.com"]
    alert_emails    = ["bills@example.com"]
    gpu             = true
  }
}

run "dev" {
  command = plan

  module {
    source = "./examples/dev"
  }
}

run "bad_region" {
  command = plan

  module {
    source = "./examples/dev"
  }

  variables {
    region = "europe-wst4"
  }
}
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of what is written, with its providers. Names in messages are relative to it."""

    folder: Path
    environment: Mapping[str, str]

    def terraform(self, *arguments: str, within: str = ".") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["terraform", *arguments],
            cwd=self.folder / within,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def provided() -> dict[str, str]:
    """The environment of a terraform that finds the provider's stand-in, where there is that."""
    environment = dict(os.environ)
    setup, made = STAND_IN / "setup.sh", ROOT / ".venv-infra" / "schema"
    if not setup.is_file():
        return environment
    made.mkdir(parents=True, exist_ok=True)
    told = made / "told"
    with made.with_name("schema.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Once: it writes anew what terraforms of other tests read.
        if not told.is_file() or told.stat().st_mtime < setup.stat().st_mtime or str(STAND_IN) not in told.read_text():
            said = subprocess.run(
                ["sh", str(setup), str(made)],
                env={"PYTHON": sys.executable, **environment},
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            ).stdout
            told.write_text(f"{said.removeprefix('export TF_CLI_CONFIG_FILE=').strip()}\n{STAND_IN}\n")
        environment["TF_CLI_CONFIG_FILE"] = told.read_text().splitlines()[0]
    return environment


def copied(folder: Path) -> Copy:
    """A copy in a new folder, ready for `terraform test` of the runs above.

    Without a provider the test is skipped; in CI it fails.
    """
    shutil.copytree(WRITTEN, folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "tests"))
    (folder / "tests").mkdir()
    (folder / "tests" / "plans.tftest.hcl").write_text(RUNS)
    environment = provided()
    made = Copy(folder, environment)
    began = made.terraform("init", "-backend=false", "-input=false", "-no-color")
    if re.search("dial tcp|no such host|[Tt]imeout|connection re", began.stderr):
        reason = f"the registry of providers cannot be reached, and there is no stand-in in {STAND_IN}"
        (pytest.fail if os.environ.get("WARMPOOL_CI") else pytest.skip)(reason)
    assert began.returncode == 0, began.stderr
    return made
