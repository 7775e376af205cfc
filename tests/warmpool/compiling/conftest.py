"""What the tests of compiling instances share: a store that is published once, and copies that they may change."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from tests.once import once
from tests.warmpool.compiling.place import Place, publish_toy


@pytest.fixture(scope="session")
def published_toy(tmp_path_factory):
    """The folder of that store; no test changes it."""
    return once(tmp_path_factory, "toy", publish_toy)


@pytest.fixture
def place(published_toy, tmp_path):
    shutil.copytree(published_toy, tmp_path / "toy")
    with contextlib.ExitStack() as stack:
        yield Place(tmp_path, stack)
