"""A BERT encoder as a Flax NNX module, with its layers stacked so that they compile once.

The architecture is that of Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding" (2019), without a pooler; token types are all zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

MASKED = -1e9  # finite: a row whose mask is all zero gets an even softmax instead of NaN
HIGHEST = jax.lax.Precision.HIGHEST  # accelerators otherwise multiply in fewer bits than the tolerance allows


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of all-MiniLM-L6-v2."""

    vocabulary: int = 30522
    positions: int = 512
    hidden: int = 384
    intermediate: int = 1536
    heads: int = 12
    layers: int = 6
    epsilon: float = 1e-12


def linear(features_in: int, features_out: int, rngs: nnx.Rngs) -> nnx.Linear:
    """A float32 linear layer in full precision on every platform."""
    return nnx.Linear(features_in, features_out, precision=HIGHEST, rngs=rngs)


def norm(config: Config, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """A layer norm that subtracts the mean before it squares: the fast form loses digits to cancellation."""
    return nnx.LayerNorm(config.hidden, epsilon=config.epsilon, use_fast_variance=False, rngs=rngs)


class Embeddings(nnx.Module):
    """Word, position and token type (always 0), summed and normalised."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs) -> None:
        self.word = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.position = nnx.Embed(config.positions, config.hidden, rngs=rngs)
        self.token_type = nnx.Embed(2, config.hidden, rngs=rngs)
        self.norm = norm(config, rngs)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        """[batch, seq] int32 to [batch, seq, hidden] float32."""
        # Positions are read by index, not by slicing: `table[:seq]` asks a symbolic seq to prove its bound.
        positions = self.position(jnp.arange(input_ids.shape[1]))
        result: jax.Array = self.norm(self.word(input_ids) + positions + self.token_type.embedding[0])
        return result


class Layer(nnx.Module):
    """Self-attention and feed-forward, each with a residual and a norm after it."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.qkv = linear(config.hidden, 3 * config.hidden, rngs)
        self.out = linear(config.hidden, config.hidden, rngs)
        self.attention_norm = norm(config, rngs)
        self.up = linear(config.hidden, config.intermediate, rngs)
        self.down = linear(config.intermediate, config.hidden, rngs)
        self.output_norm = norm(config, rngs)

    def attend(self, hidden: jax.Array, bias: jax.Array) -> jax.Array:
        """Multi-head attention over [batch, seq, hidden]; `bias` is [batch, 1, 1, seq]."""
        batch, seq, width = hidden.shape
        qkv = self.qkv(hidden).reshape(batch, seq, 3, self.heads, width // self.heads)
        query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision=HIGHEST) * (width // self.heads) ** -0.5
        weights = jax.nn.softmax(scores + bias, axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value, precision=HIGHEST)
        return self.out(mixed.reshape(batch, seq, width))

    def __call__(self, hidden: jax.Array, bias: jax.Array) -> jax.Array:
        """[batch, seq, hidden] to the same shape."""
        hidden = self.attention_norm(hidden + self.attend(hidden, bias))
        inner = jax.nn.gelu(self.up(hidden), approximate=False)
        result: jax.Array = self.output_norm(hidden + self.down(inner))
        return result


class Bert(nnx.Module):
    """Embeddings and a scan over stacked layers: every layer parameter has a leading axis of `config.layers`."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs) -> None:
        self.embeddings = Embeddings(config, rngs=rngs)

        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(layer_rngs: nnx.Rngs) -> Layer:
            return Layer(config, rngs=layer_rngs)

        self.layers = stack(rngs)

    def __call__(self, input_ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """[batch, seq] int32 twice to hidden states [batch, seq, hidden] float32."""
        bias = jnp.where(attention_mask == 0, MASKED, 0.0).astype(jnp.float32)[:, None, None, :]

        @nnx.scan(in_axes=(nnx.Carry, 0, None), out_axes=nnx.Carry)
        def forward(hidden: jax.Array, layer: Layer, bias: jax.Array) -> jax.Array:
            return layer(hidden, bias)

        return forward(self.embeddings(input_ids), self.layers, bias)


def mean_pool(hidden: jax.Array, attention_mask: jax.Array) -> jax.Array:
    """The mean of the unmasked positions, as unit vectors; a row without any gives zeros.

    Args:
        hidden: float32 [batch, seq, hidden].
        attention_mask: int32 [batch, seq], 0 or 1.

    Returns:
        float32 [batch, hidden].
    """
    mask = attention_mask.astype(hidden.dtype)[:, :, None]
    mean = (hidden * mask).sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1.0)
    return mean * jax.lax.rsqrt(jnp.maximum((mean * mean).sum(axis=1, keepdims=True), 1e-24))
