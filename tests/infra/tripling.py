"""A model that takes little to publish, for tests of a whole stack; its answers can be computed by hand."""

import jax.numpy as jnp

from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=4, sizes=(4,), batch=True)


def predict(params, x):
    return x * params["factor"]


model = Model(
    name="tripling",
    methods={"predict": predict},
    params={"factor": jnp.float32(3)},
    inputs={"x": Tensor("float32", (batch,), pad=0)},
)
