"""The digits example with a bucket for every number of rows, in versions whose programs differ."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from examples.digits.files import checkpoint
from examples.digits.network import PIXEL_MAX, logits
from warmpool.model import Dim, Model, Tensor

ROWS_MAX = 24


def predict_with(temperature: float) -> Any:
    """Images, float32 [batch, 8, 8], to `probabilities`, float32 [batch, 10]: the flatter, the higher it is."""

    def predict(params: dict[str, Any], image: jax.Array) -> dict[str, jax.Array]:
        scores = logits(params, image) / jnp.float32(temperature)
        return {"probabilities": jax.nn.softmax(scores)}

    return predict


def right(images: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float32]:
    """What plain JAX answers: the probabilities, of the trained network."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        params = checkpointer.restore(checkpoint())
    return np.asarray(jax.jit(predict_with(temperature))(params, images)["probabilities"])


def digits_with(temperature: float) -> Model:
    """A version of it."""
    return Model(
        name="digits",
        methods={"predict": predict_with(temperature)},
        params=checkpoint(),
        inputs={"image": Tensor("float32", (batch, 8, 8), low=0.0, high=PIXEL_MAX)},
    )


batch = Dim("batch", max=ROWS_MAX, sizes=tuple(range(1, ROWS_MAX + 1)), batch=True)
