"""The network of the digits example, apart from its training and its declaration, which both need it."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

CLASSES = 10
PIXEL_MAX = 16.0  # scikit-learn's digits count ink in blocks of 4 by 4
HIGHEST = jax.lax.Precision.HIGHEST


class Network(nnx.Module):
    """Two convolutions, a pooling and two linear layers over 8 by 8 pixels."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, kernel_size=(3, 3), precision=HIGHEST, rngs=rngs)
        self.second = nnx.Conv(16, 32, kernel_size=(3, 3), precision=HIGHEST, rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 32, 64, precision=HIGHEST, rngs=rngs)
        self.out = nnx.Linear(64, CLASSES, precision=HIGHEST, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Images, float32 [batch, 8, 8] from 0 to 16, to logits, float32 [batch, 10]."""
        features = nnx.relu(self.first(image[..., None] / PIXEL_MAX))
        features = nnx.relu(self.second(features))
        features = nnx.max_pool(features, window_shape=(2, 2), strides=(2, 2))
        features = nnx.relu(self.hidden(features.reshape(features.shape[0], -1)))
        return self.out(features)


GRAPH = nnx.graphdef(nnx.eval_shape(lambda: Network(rngs=nnx.Rngs(0))))


def initial(seed: int) -> dict[str, Any]:
    """Fresh params as a plain nested dict of arrays: it saves, restores and exports without this class."""
    params: dict[str, Any] = nnx.to_pure_dict(nnx.state(Network(rngs=nnx.Rngs(seed)), nnx.Param))
    return params


def logits(params: dict[str, Any], image: jax.Array) -> jax.Array:
    """`Network` as a function of its params: float32 [batch, 8, 8] to [batch, 10]."""
    result: jax.Array = nnx.merge(GRAPH, params)(image)
    return result
