"""Two models that are large in different ways, published for real: `heavy` has weights, `hungry` keeps every step.

`heavy` takes 64 MiB of weights, all of which a run reads. A run of `hungry` takes 16 MiB for each row of its bucket.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from cache.settings import StoreSettings
from warmpool.publishing.publish import Options, publish

HEAVY = """
import numpy as np
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=8, sizes=(1, 2), batch=True)

def predict(params, x):
    return (x @ params["table"]).max(axis=1)

table = np.arange(16 << 20, dtype=np.float32).reshape(16, 1 << 20) % 1009
model = Model(
    name="heavy",
    methods={"predict": predict},
    params={"table": table},
    inputs={"x": Tensor("float32", (batch, 16), low=0.0, high=1.0)},
)
"""
WEIGHT_BYTES = 64 << 20

HUNGRY = """
from jax import lax
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=8, sizes=(1, 4, 8), batch=True)

def predict(params, x):
    _, steps = lax.scan(lambda carry, _: (carry * 0.5 + 1.0, carry), x, None, length=1024)
    return steps.max(axis=0)

model = Model(
    name="hungry",
    methods={"predict": predict},
    inputs={"x": Tensor("float32", (batch, 4096), low=-1.0, high=1.0)},
)
"""
ROW_BYTES = 16 << 20


class Silent:
    """A progress that nobody looks at."""

    def say(self, text: str) -> None: ...

    def expect(self, steps: int) -> None: ...

    def step(self, text: str) -> None: ...


def publish_large(folder: Path) -> Path:
    """A new store with both."""
    store = folder / "store"
    for text in (HEAVY, HUNGRY):
        path = folder / "model.py"
        path.write_text(text)
        publish(Options(model_file=path, store=StoreSettings(store=str(store), allow_unsigned=True)), Silent())
    return store


def hungry(x: np.ndarray) -> np.ndarray:
    """What it answers, by hand: it goes towards 2 from below."""
    steps = [x]
    for _ in range(40):
        steps.append(steps[-1] * np.float32(0.5) + np.float32(1))
    return np.max(steps, axis=0)


def heavy(x: np.ndarray) -> np.ndarray:
    """What plain JAX answers."""
    table = np.arange(16 << 20, dtype=np.float32).reshape(16, 1 << 20) % 1009
    return np.asarray(jax.jit(lambda table, x: (x @ table).max(axis=1))(table, x))
