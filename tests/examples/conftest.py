"""What the tests of the examples share: the digits network, trained once, and a store with all three published."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.digits import train
from tests.once import once

ROOT = Path(__file__).parents[2]
EXAMPLES = ("digits", "embed", "options")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trained network, which no test changes."""
    return once(tmp_path_factory, "digits", lambda folder: train.ensure(folder / "checkpoint")) / "checkpoint"


@pytest.fixture(scope="session")
def published(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with the examples, which no test changes.

    Where WARMPOOL_EXAMPLES_STORE names one that `make run` made, nothing compiles again.
    """
    environment = {**os.environ, "WARMPOOL_DIGITS_CHECKPOINT": str(checkpoint)}

    def make(folder: Path) -> None:
        if before := os.environ.get("WARMPOOL_EXAMPLES_STORE"):
            shutil.copytree(before, folder, dirs_exist_ok=True)
        for name in EXAMPLES:
            command = [sys.executable, "-m", "warmpool.cli", "publish", f"examples/{name}/model.py"]
            command += ["--store", str(folder), "--allow-unsigned"]
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
            assert run.returncode == 0, run.stderr

    return once(tmp_path_factory, "examples", make)
