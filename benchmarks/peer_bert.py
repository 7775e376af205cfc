"""all-MiniLM-L6-v2 in plain JAX, for the peer: the arithmetic of examples/embed without the time of `import flax`.

The architecture is that of Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding" (2019), without a pooler. Weights are used as the checkpoint has them, [out, in], since transposing
would copy them at every start.
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.embed.files import model_folder

LAYERS = 6
HEADS = 12
EPSILON = 1e-12
MASKED = -1e9
HIGHEST = jax.lax.Precision.HIGHEST

Tensors = dict[str, np.ndarray]


def map_tensors(path: Path) -> Tensors:
    """The float32 tensors of a safetensors file as views of its mapping; `safetensors.load_file` copies all 90 MB."""
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(mapped[:8], "little")
    entries = json.loads(mapped[8:start])
    entries.pop("__metadata__", None)
    return {
        name: np.frombuffer(mapped, np.float32, math.prod(entry["shape"]), start + entry["data_offsets"][0]).reshape(
            entry["shape"]
        )
        for name, entry in entries.items()
        if entry["dtype"] == "F32"
    }


def stacked(tensors: Tensors, name: str) -> np.ndarray:
    """One tensor of every layer, along a new first axis, so that the layers trace and compile once."""
    return np.stack([tensors[f"encoder.layer.{index}.{name}"] for index in range(LAYERS)])


def pair(tensors: Tensors, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of one part of every layer, or of several put side by side."""
    weights, biases = ([stacked(tensors, f"{name}.{kind}") for name in names] for kind in ("weight", "bias"))
    if len(names) == 1:
        return weights[0], biases[0]
    return np.concatenate(weights, axis=1), np.concatenate(biases, axis=1)


def load_params() -> dict[str, Any]:
    """All weights, mapped."""
    tensors = map_tensors(model_folder() / "model.safetensors")
    table = "embeddings.{}_embeddings.weight"
    return {
        "word": tensors[table.format("word")],
        "position": tensors[table.format("position")],
        "token_type": tensors[table.format("token_type")],
        "norm": (tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]),
        "layers": {
            "qkv": pair(tensors, *(f"attention.self.{name}" for name in ("query", "key", "value"))),
            "out": pair(tensors, "attention.output.dense"),
            "attention_norm": pair(tensors, "attention.output.LayerNorm"),
            "up": pair(tensors, "intermediate.dense"),
            "down": pair(tensors, "output.dense"),
            "output_norm": pair(tensors, "output.LayerNorm"),
        },
    }


def norm(hidden: jax.Array, scale_bias: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Layer normalisation over the last axis."""
    mean = hidden.mean(axis=-1, keepdims=True)
    variance = jnp.square(hidden - mean).mean(axis=-1, keepdims=True)
    return (hidden - mean) * jax.lax.rsqrt(variance + EPSILON) * scale_bias[0] + scale_bias[1]


def linear(hidden: jax.Array, weight_bias: tuple[jax.Array, jax.Array]) -> jax.Array:
    """[batch, seq, in] to [batch, seq, out]."""
    return jnp.einsum("bsi,oi->bso", hidden, weight_bias[0], precision=HIGHEST) + weight_bias[1]


def attend(hidden: jax.Array, bias: jax.Array, params: dict[str, Any]) -> jax.Array:
    """Multi-head attention over [batch, seq, hidden]."""
    batch, seq, width = hidden.shape
    qkv = linear(hidden, params["qkv"]).reshape(batch, seq, 3, HEADS, width // HEADS)
    query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision=HIGHEST) * (width // HEADS) ** -0.5
    weights = jax.nn.softmax(scores + bias, axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value, precision=HIGHEST)
    return linear(mixed.reshape(batch, seq, width), params["out"])


def predict(params: dict[str, Any], input_ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
    """Token ids and their mask, int32 [batch, seq], to unit vectors, float32 [batch, 384]."""
    bias = jnp.where(attention_mask == 0, MASKED, 0.0).astype(jnp.float32)[:, None, None, :]
    positions = params["position"][: input_ids.shape[1]]
    first = norm(params["word"][input_ids] + positions + params["token_type"][0], params["norm"])

    def layer(hidden: jax.Array, part: dict[str, Any]) -> tuple[jax.Array, None]:
        hidden = norm(hidden + attend(hidden, bias, part), part["attention_norm"])
        inner = jax.nn.gelu(linear(hidden, part["up"]), approximate=False)
        return norm(hidden + linear(inner, part["down"]), part["output_norm"]), None

    hidden, _ = jax.lax.scan(layer, first, params["layers"])
    mask = attention_mask.astype(hidden.dtype)[:, :, None]
    mean = (hidden * mask).sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1.0)
    return mean * jax.lax.rsqrt(jnp.maximum((mean * mean).sum(axis=1, keepdims=True), 1e-24))
