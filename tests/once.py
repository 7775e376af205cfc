"""What is made once for all the processes that a run of the tests consists of."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A new folder of this name, filled by `make` in the first process that asks; the others wait for it.

    A test that changes it changes it for all.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.with_name(f"{name}.done")
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one who failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
