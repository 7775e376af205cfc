"""What the tests of the examples share: the digits network, trained once, and a store with all three published."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import pytest

from cache.settings import StoreSettings
from examples.digits import train
from tests.once import once
from warmpool.publishing.progress import Lines
from warmpool.publishing.publish import Options, publish

ROOT = Path(__file__).parents[2]
EXAMPLES = ("digits", "embed", "options")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trained network, which no test changes; how it was trained is beside its checkpoint."""

    def make(folder: Path) -> None:
        found = train.ensure(folder / "checkpoint")
        assert found is not None
        (folder / "history.json").write_text(json.dumps([asdict(epoch) for epoch in found.history]), encoding="utf-8")
        leaves = jax.tree_util.tree_leaves_with_path(found.params)
        np.savez(folder / "params.npz", **{jax.tree_util.keystr(path): leaf for path, leaf in leaves})

    return once(tmp_path_factory, "digits", make)


@pytest.fixture(scope="session")
def checkpoint(trained: Path) -> Path:
    """The folder of its weights."""
    return trained / "checkpoint"


@pytest.fixture(scope="session")
def published(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with the examples, which no test changes.

    Where WARMPOOL_EXAMPLES_STORE names one that `make run` made, nothing compiles again.
    """

    def make(folder: Path) -> None:
        if before := os.environ.get("WARMPOOL_EXAMPLES_STORE"):
            shutil.copytree(before, folder, dirs_exist_ok=True)
        store = StoreSettings(store=str(folder), allow_unsigned=True)
        for name in EXAMPLES:
            with pytest.MonkeyPatch.context() as changes:
                if name == "digits":  # else its zygotes are those of other publishes
                    changes.setenv("WARMPOOL_DIGITS_CHECKPOINT", str(checkpoint))
                publish(Options(model_file=ROOT / f"examples/{name}/model.py", store=store), Lines(sys.stderr))

    return once(tmp_path_factory, "examples", make)
