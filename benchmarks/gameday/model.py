"""The model of a game day: answers that a line of numpy gives exactly, and buckets of which none is much to compile."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from warmpool.model import Dim, Method, Model, Tensor

batch = Dim("batch", max=12, sizes=(1, 4, 8), batch=True)
width = Dim("width", max=16, sizes=(8, 16))


def total(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """The sum of each row, times a factor."""
    return x.sum(axis=1) * params["factor"]


def square(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Each row squared, plus a factor."""
    return x * x + params["factor"]


model = Model(
    name="gameday",
    methods={"total": total, "square": Method(square, inputs={"x": Tensor("float32", (batch,))})},
    params={"factor": np.array(3.0, np.float32)},
    inputs={"x": Tensor("float32", (batch, width), pad=0.0)},
)
