"""What the tests of the examples share: the digits network, trained once, and a store with all three published."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.digits import train
from tests.once import once

ROOT = Path(__file__).parents[2]
EXAMPLES = ("digits", "embed", "options")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, train.Trained]:
    folder = tmp_path_factory.mktemp("digits") / "checkpoint"
    trained = train.ensure(folder)
    assert trained is not None
    return folder, trained


@pytest.fixture(scope="session")
def published(checkpoint: tuple[Path, train.Trained], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with the examples, which no test changes."""
    environment = {**os.environ, "WARMPOOL_DIGITS_CHECKPOINT": str(checkpoint[0])}

    def make(folder: Path) -> None:
        for name in EXAMPLES:
            command = [sys.executable, "-m", "warmpool.cli", "publish", f"examples/{name}/model.py"]
            command += ["--store", str(folder), "--allow-unsigned"]
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
            assert run.returncode == 0, run.stderr

    return once(tmp_path_factory, "examples", make)
