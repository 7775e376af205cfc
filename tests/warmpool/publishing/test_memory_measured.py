"""What an executable takes is measured when it is proved, whoever compiled it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from cache.settings import StoreSettings
from warmpool.manifest import ExecutableSpec, Target
from warmpool.publishing.publish import Options, Summary, publish

KEEPING = """
import numpy as np
from jax import lax
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=2, sizes=(1, 2), batch=True)

def predict(params, x):
    def step(carry, _):
        return carry * 0.5 + params["bias"], carry

    _, steps = lax.scan(step, x, None, length=1024)
    return steps.max(axis=0)

model = Model(
    name="keeping",
    methods={{"predict": predict}},
    params={{"bias": np.full(4096, {bias}, np.float32)}},
    inputs={{"x": Tensor("float32", (batch, 4096))}},
)
"""
ROW_BYTES = 4096 * 4


class Silent:
    """A progress that nobody looks at."""

    def say(self, text: str) -> None: ...

    def expect(self, steps: int) -> None: ...

    def step(self, text: str) -> None: ...


def published(folder: Path, bias: float) -> tuple[Summary, dict[int, ExecutableSpec]]:
    """By rows, what the target says."""
    path = folder / "model.py"
    path.write_text(KEEPING.format(bias=bias))
    store = folder / "store"
    summary = publish(Options(model_file=path, store=StoreSettings(store=str(store), allow_unsigned=True)), Silent())
    (target,) = (store / "models" / "keeping" / summary.version / "targets").iterdir()
    executables = msgspec.json.decode(target.read_bytes(), type=Target).executables
    return summary, {one.bucket["batch"]: one for one in executables if not one.ladder}


def test_a_target_says_what_its_executables_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    first, measured = published(tmp_path, bias=1.0)
    for rows, spec in measured.items():
        memory = spec.memory
        assert memory is not None
        assert memory.temp >= 1024 * rows * ROW_BYTES, "every step is kept until the end"
        assert (memory.arguments, memory.outputs) == (ROW_BYTES + rows * ROW_BYTES, rows * ROW_BYTES)
        # Neither what is stored nor what a process pays once: the one is 20 times smaller, the other 10 MB.
        assert 3 * spec.size_bytes < memory.code < 5 << 20, (spec.size_bytes, memory)
    second, again = published(tmp_path, bias=2.0)
    assert (first.compiled, second.compiled) == (4, 0)
    for rows, spec in again.items():
        before = measured[rows].memory
        assert spec.memory is not None, "it is measured where it is proved, compiled there or not"
        assert before is not None
        assert spec.memory.temp == before.temp
