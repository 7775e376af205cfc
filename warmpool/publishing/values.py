"""What tensors hold while a method is proved: legal values, and whatever else may lie where it has to ignore it.

Every number follows from names, so that the processes that run references and trials agree on it without sending one.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
from numpy.typing import NDArray

from warmpool.dtypes import FLOAT_MAX, INT_RANGES
from warmpool.manifest import TensorSpec

Fill = Literal["written", "garbage", "NaN", "infinity"]

VALUES = "1"
"""Names what is drawn here and in `subject`, since answers to it are kept: another one whenever any of it changes."""

_UNBOUNDED_SPAN = 100


def number_of(*names: str) -> int:
    """A number from 0 to 2**64 - 1: the first bytes of SHA-256 over names, the same in every process and release."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:8], "little")


def generator_of(*names: str) -> np.random.Generator:
    """A generator seeded by names (`number_of`)."""
    return np.random.default_rng(number_of(*names))


def legal(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Random values within the bounds. A mask is all ones: with a random one, many a model would divide by zero."""
    if is_mask(tensor):
        return np.ones(shape, tensor.dtype)
    return np.asarray(_random(tensor, shape, generator, scale=1.0))


def one_sided(tensor: TensorSpec, values: NDArray[Any], side: int) -> NDArray[Any]:
    """Legal values moved to one side of what padding holds, so that no extreme over the valid ones hides it.

    Args:
        tensor: Their input.
        values: Legal ones.
        side: 1 for above, -1 for below, 0 for as they are. So they stay too where the bounds leave no room.
    """
    if tensor.dtype == "bool" or is_mask(tensor) or not side:
        return values
    low, high = _bounds(tensor)
    pivot = float(tensor.pad or 0)
    if not (pivot < high if side > 0 else low < pivot):
        return values
    distances = np.abs(values.astype(np.float64) - pivot)
    return np.clip(pivot + side * distances, low, high).astype(values.dtype)


def garbage(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Values within the bounds, and wild where there are none."""
    return np.asarray(_random(tensor, shape, generator, scale=100.0))


def content(tensor: TensorSpec, fill: Fill, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """What a fill puts where anything may lie; where the bounds forbid it, what an instance writes."""
    if fill == "garbage":
        return garbage(tensor, shape, generator)
    if fill == "NaN" and may_be_nan(tensor):
        return np.full(shape, np.nan, tensor.dtype)
    if fill == "infinity" and (infinities := infinities_of(tensor)):
        return np.asarray(generator.choice(infinities, shape), tensor.dtype)
    return np.full(shape, tensor.pad or 0, tensor.dtype)


def may_be_nan(tensor: TensorSpec) -> bool:
    """Whether a caller may send NaN, which is inside no bounds."""
    return tensor.dtype in FLOAT_MAX and tensor.low is None and tensor.high is None


def infinities_of(tensor: TensorSpec) -> list[float]:
    """The infinities that a caller may send."""
    if tensor.dtype not in FLOAT_MAX:
        return []
    return [value for value, bound in ((-np.inf, tensor.low), (np.inf, tensor.high)) if bound is None]


def is_mask(tensor: TensorSpec) -> bool:
    """Whether an input says which positions are valid."""
    if tensor.may_be_left_out:
        return True
    if tensor.dtype == "bool":
        return tensor.pad is False
    return tensor.dtype in INT_RANGES and (tensor.low, tensor.high) == (0, 1)


def _random(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> Any:
    if tensor.dtype == "bool":
        return generator.random(shape) < 0.5
    if tensor.dtype in INT_RANGES:
        low, high = _int_bounds(tensor)
        return generator.integers(low, high, shape, endpoint=True).astype(tensor.dtype)
    largest = FLOAT_MAX[tensor.dtype]
    wild = generator.standard_normal(shape) * scale
    if tensor.low is not None and tensor.high is not None:
        wild = tensor.low + (tensor.high - tensor.low) * generator.random(shape)
    elif tensor.low is not None:
        wild = tensor.low + np.abs(wild)
    elif tensor.high is not None:
        wild = tensor.high - np.abs(wild)
    return np.clip(wild, -largest, largest).astype(tensor.dtype)


def _bounds(tensor: TensorSpec) -> tuple[float, float]:
    """The declared bounds; where one is missing those of an int's small span, or of the floating dtype."""
    if tensor.dtype in INT_RANGES:
        return _int_bounds(tensor)
    largest = FLOAT_MAX[tensor.dtype]
    return (-largest if tensor.low is None else tensor.low, largest if tensor.high is None else tensor.high)


def _int_bounds(tensor: TensorSpec) -> tuple[int, int]:
    """The declared bounds; where one is missing a small span, since an index may have been declared without bounds."""
    lowest, highest = INT_RANGES[tensor.dtype]
    if tensor.low is not None:
        low = int(tensor.low)
    else:
        low = 0 if tensor.high is None or tensor.high >= 0 else int(tensor.high) - _UNBOUNDED_SPAN
    high = low + _UNBOUNDED_SPAN if tensor.high is None else int(tensor.high)
    return max(low, lowest), min(high, highest)
