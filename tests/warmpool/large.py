"""Models that are large in different ways, published for real: some have weights, `hungry` keeps every step.

`heavy` and `other` have 64 MiB of weights, all of which a run reads. A run of `hungry` takes 16 MiB for each row of its
bucket.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cache.settings import StoreSettings
from warmpool.publishing.publish import Options, publish

HEAVY = """
import numpy as np
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=8, sizes=(1, 2), batch=True)

def predict(params, x):
    return (x @ params["table"]).max(axis=1)

table = np.arange(16 << 20, dtype=np.float32).reshape(16, 1 << 20) % {modulus}
model = Model(
    name="{name}",
    methods={{"predict": predict}},
    params={{"table": table}},
    inputs={{"x": Tensor("float32", (batch, 16), low=0.0, high=1.0)}},
)
"""
MODULI = {"heavy": 1009, "other": 503}
WEIGHT_BYTES = 64 << 20

HUNGRY = """
from jax import lax
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=8, sizes=(1, 2, 8), batch=True)

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
    """A new store with all of them."""
    store = folder / "store"
    for text in (*(HEAVY.format(name=name, modulus=modulus) for name, modulus in MODULI.items()), HUNGRY):
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


def largest(name: str) -> float:
    """What `heavy` or `other` answers to a single one: the largest of its weights."""
    return MODULI[name] - 1.0
