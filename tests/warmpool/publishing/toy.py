"""The smallest model that has all that a publish stores: weights, a bucket, and a reference below it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from cache.settings import StoreSettings
from cache.signing import Signer
from warmpool.publishing.publish import Options, Summary, publish

MODEL = """
import numpy as np
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=4, sizes={sizes}, batch=True)
seq = Dim("seq", max={seq}, sizes=({seq},))

def predict(params, x):
    return x.sum(axis=1) {operation} params["factor"]

model = Model(
    name="{name}",
    methods={{"predict": predict}},
    params={{"factor": np.array({factor}, np.float32)}},
    inputs={{"x": Tensor("float32", (batch, seq), pad=0.0)}},
)
"""


class Heard:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.said: list[str] = []

    def expect(self, count: int) -> None:
        """How many steps are to come."""

    def step(self, what: str) -> None:
        self.steps.append(what)

    def say(self, text: str) -> None:
        self.said.append(text)

    @property
    def compiled(self) -> list[str]:
        return [step for step in self.steps if step.startswith("compiled ") and "function" not in step]


class Toy:
    """Publishes toy models into one signed store.

    Args:
        folder: A folder for the store, the author's files and the key, empty or with what another one put there.
        seq: The only size that its rows have; of 4 it is proved with references at 1, 2 and 3, of 2 with one at 1.
    """

    def __init__(self, folder: Path, *, seq: int = 4) -> None:
        self.folder = folder
        self.seq = seq
        self.store = folder / "store"
        if not (folder / "key").exists():
            Signer.generate().write(folder / "key")
        self.settings = StoreSettings(store=str(self.store), signing_key=str(folder / "key"))

    def model_file(
        self, factor: float = 2.0, *, sizes: tuple[int, ...] = (1,), name: str = "toy", operation: str = "*"
    ) -> Path:
        path = self.folder / "author" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        text = MODEL.format(factor=factor, sizes=sizes, seq=self.seq, name=name, operation=operation)
        path.write_text(textwrap.dedent(text))
        return path

    def publish(
        self, version: str | None = None, *, factor: float = 2.0, sizes: tuple[int, ...] = (1,), name: str = "toy"
    ) -> tuple[Summary, Heard]:
        heard = Heard()
        options = Options(
            model_file=self.model_file(factor, sizes=sizes, name=name), store=self.settings, version=version
        )
        return publish(options, heard), heard
