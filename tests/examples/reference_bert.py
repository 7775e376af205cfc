"""BERT in float64 numpy, written from the paper layer by layer, with nothing in common with `examples.embed`."""

from __future__ import annotations

import math

import numpy as np

HEADS = 12
EPSILON = 1e-12
LAYERS = 6

erf = np.vectorize(math.erf, otypes=[np.float64])


def normalised(x: np.ndarray, tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return np.add(scaled * tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def dense(x: np.ndarray, tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    return np.add(x @ tensors[f"{name}.weight"].T, tensors[f"{name}.bias"])


def attention(x: np.ndarray, tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    query, key, value = (dense(x, tensors, f"{name}.self.{part}") for part in ("query", "key", "value"))
    width = x.shape[1] // HEADS
    heads = []
    for head in range(HEADS):
        columns = slice(head * width, (head + 1) * width)
        scores = query[:, columns] @ key[:, columns].T / math.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ value[:, columns])
    return dense(np.concatenate(heads, -1), tensors, f"{name}.output.dense")


def embedding(tensors: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """The unit vector [384] of one text's token ids; masks and batches do not exist here."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items() if tensor.dtype == np.float32}
    words = tensors["embeddings.word_embeddings.weight"][ids]
    positions = tensors["embeddings.position_embeddings.weight"][: len(ids)]
    types = tensors["embeddings.token_type_embeddings.weight"][0]
    x = normalised(words + positions + types, tensors, "embeddings.LayerNorm")
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        mixed = attention(x, tensors, f"{layer}.attention")
        x = normalised(x + mixed, tensors, f"{layer}.attention.output.LayerNorm")
        inner = dense(x, tensors, f"{layer}.intermediate.dense")
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        x = normalised(x + dense(inner, tensors, f"{layer}.output.dense"), tensors, f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)
