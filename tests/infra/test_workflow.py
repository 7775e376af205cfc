"""The workflow that other repositories call: its form, by GitHub's schema, and its steps, by running them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github/workflows/prove.yml"
TEXT = WORKFLOW.read_text()
BIN = Path(sys.executable).parent
MODEL = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

model = Model(
    name="{name}",
    methods={{"predict": lambda params, x: {body}}},
    inputs={{"x": Tensor("float32", (Dim("batch", max=1, sizes=(1,), batch=True),))}},
)
"""


def checked(file: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_github_would_take_it():
    done = checked(WORKFLOW)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("right", "wrong"), [("runs-on:", "runs_on:"), ("type: string", "type: text"), ("    steps:", "    step:")]
)
def test_a_typo_in_it_would_be_noticed(tmp_path, right, wrong):
    file = tmp_path / "prove.yml"
    file.write_text(TEXT.replace(right, wrong, 1))
    assert checked(file).returncode == 1


def test_every_input_is_used_and_every_one_that_is_used_is_there():
    declared = YAML(typ="safe").load(TEXT)["on"]["workflow_call"]["inputs"]
    assert set(re.findall(r"inputs\.(\w+)", TEXT)) == set(declared)
    assert set(re.findall(r"matrix\.(\w+)", TEXT)) == {"target", "pins"}


def test_nothing_that_a_caller_gives_is_put_into_a_shells_words():
    """It would be run: what a caller gives goes through the environment."""
    for step in YAML(typ="safe").load(TEXT)["jobs"]["prove"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_what_others_wrote_is_named_by_its_commit_which_nobody_can_move():
    used = [step["uses"] for step in YAML(typ="safe").load(TEXT)["jobs"]["prove"]["steps"] if "uses" in step]
    assert len(used) == 2
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)


@pytest.fixture(scope="module")
def steps():
    """The scripts of the steps by their names."""
    return {
        step["name"]: step["run"] for step in YAML(typ="safe").load(TEXT)["jobs"]["prove"]["steps"] if "run" in step
    }


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A step, as a runner runs it."""
    job = YAML(typ="safe").load(TEXT)["jobs"]["prove"]["env"]
    ours = {
        name: text.replace("${{ github.workspace }}", str(folder)) for name, text in job.items() if "workspace" in text
    }
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_"))}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True,
        timeout=300, check=False, env={**kept, **ours, **environment, "PATH": path},
    )  # fmt: skip


def test_its_steps_prove_what_is_right_and_name_what_is_not(tmp_path, steps):
    (tmp_path / "right.py").write_text(MODEL.format(name="right", body="2 * x"))
    (tmp_path / "wrong.py").write_text(MODEL.format(name="wrong", body="jnp.sum(x) + nothing"))
    publish = steps["Publish, which compiles and proves"]
    done = run(publish, tmp_path, MODELS="right.py\n\nwrong.py\n")
    assert done.returncode == 1
    assert "published right" in done.stdout
    assert "::error file=wrong.py::it was not published on this target" in done.stdout
    assert "nothing" in done.stderr
    done = run(steps["Read all of it again, and find nothing missing"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "everything is sound" in done.stdout
    assert "0 of them compiled now" in done.stdout
    assert "right/" in done.stdout


def test_its_install_takes_what_a_caller_pins(tmp_path, steps):
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"; cat requirements.prove.txt\n')
    (tmp_path / "python").chmod(0o755)
    script = f'PATH="{tmp_path}:$PATH"\n{steps["Install"]}'
    done = run(
        script, tmp_path, WARMPOOL="xla-warmpool[publish]", REQUIREMENTS="flax", PINS="jax==0.11.2 jaxlib==0.11.2"
    )
    assert done.stdout.split() == [
        *("-m", "pip", "install", "--quiet", "--requirement", "requirements.prove.txt"),
        *("xla-warmpool[publish]", "flax", "jax==0.11.2", "jaxlib==0.11.2"),
    ]
