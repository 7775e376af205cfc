"""The trained digits network as a model of the pool: class and probabilities."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from examples.digits.files import checkpoint
from examples.digits.network import PIXEL_MAX, logits
from warmpool.model import Dim, Model, Tensor


def predict(params: dict[str, Any], image: jax.Array) -> dict[str, jax.Array]:
    """Images, float32 [batch, 8, 8], to `probabilities`, float32 [batch, 10], and `label`, int32 [batch]."""
    scores = logits(params, image)
    return {"probabilities": jax.nn.softmax(scores), "label": jnp.argmax(scores, axis=-1).astype(jnp.int32)}


batch = Dim("batch", max=256, sizes=(1, 2, 4, 8, 16, 32), batch=True)

model = Model(
    name="digits",
    methods={"predict": predict},
    params=checkpoint(),  # made by `python -m examples.digits.train`
    inputs={"image": Tensor("float32", (batch, 8, 8), low=0.0, high=PIXEL_MAX)},
)
