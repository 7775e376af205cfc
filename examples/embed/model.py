"""all-MiniLM-L6-v2 as a model of the pool: real weights, 20 shape buckets, unit vectors of 384 numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from examples.embed.bert import Bert, Config, mean_pool
from examples.embed.files import model_folder
from warmpool.model import Dim, LengthMask, Model, Tensor

CONFIG = Config()
# The module's structure without a number in it: weights are arguments of the program, never constants.
GRAPH = nnx.graphdef(nnx.eval_shape(lambda: Bert(CONFIG, rngs=nnx.Rngs(0))))

# Our names of a layer's parts, and the checkpoint's.
LINEAR = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}
NORM = {"attention_norm": "attention.output.LayerNorm", "output_norm": "output.LayerNorm"}

Tensors = dict[str, np.ndarray]


def stacked(tensors: Tensors, name: str) -> np.ndarray:
    """One tensor of every layer, along a new first axis."""
    return np.stack([tensors[f"encoder.layer.{index}.{name}"] for index in range(CONFIG.layers)])


def linear(tensors: Tensors, names: tuple[str, ...]) -> Tensors:
    """Stacked kernels [layers, in, out] and biases of one linear part, or of several put side by side."""
    kernel = np.concatenate([stacked(tensors, f"{name}.weight") for name in names], axis=1)
    bias = np.concatenate([stacked(tensors, f"{name}.bias") for name in names], axis=1)
    return {"kernel": np.ascontiguousarray(kernel.transpose(0, 2, 1)), "bias": bias}


def arrange(tensors: Tensors) -> dict[str, Any]:
    """The checkpoint's tensors as the state of `Bert`, a plain nested dict of float32 arrays."""
    table = {
        kind: {"embedding": tensors[f"embeddings.{kind}_embeddings.weight"]}
        for kind in ("word", "position", "token_type")
    }
    norms = {
        ours: {"scale": stacked(tensors, f"{theirs}.weight"), "bias": stacked(tensors, f"{theirs}.bias")}
        for ours, theirs in NORM.items()
    }
    first = {"scale": tensors["embeddings.LayerNorm.weight"], "bias": tensors["embeddings.LayerNorm.bias"]}
    layers = {ours: linear(tensors, theirs) for ours, theirs in LINEAR.items()}
    return {"embeddings": {**table, "norm": first}, "layers": {**layers, **norms}}


def load_params() -> dict[str, Any]:
    """The installed checkpoint: 22.6 million float32 numbers."""
    return arrange(load_file(model_folder() / "model.safetensors"))


def predict(params: dict[str, Any], input_ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
    """Token ids and their mask, int32 [batch, seq], to unit vectors, float32 [batch, 384]."""
    hidden = nnx.merge(GRAPH, params)(input_ids, attention_mask)
    return mean_pool(hidden, attention_mask)


batch = Dim("batch", max=64, sizes=(1, 2, 4, 8), batch=True)
seq = Dim("seq", max=256, sizes=(16, 32, 64, 128, 256))

model = Model(
    name="embed",
    methods={"predict": predict},
    params=load_params,
    inputs={
        "input_ids": Tensor("int32", (batch, seq), pad=0, low=0, high=CONFIG.vocabulary - 1),
        "attention_mask": LengthMask(seq),
    },
)
