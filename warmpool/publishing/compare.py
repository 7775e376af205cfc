"""How tensors are compared: floats within a tolerance, and everything else exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool.manifest import ToleranceSpec


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from its reference.

    Attributes:
        error_max: The largest finite difference.
        excess: The largest difference in units of what is allowed there; above 1 the tensor differs.
    """

    error_max: float
    excess: float

    @property
    def within(self) -> bool:
        return self.excess <= 1.0


def difference(found: NDArray[Any], wanted: NDArray[Any], tolerance: ToleranceSpec) -> Difference:
    """Compares a tensor with its reference. What is no float, or not finite, has to be the same on both sides."""
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return Difference(np.inf, np.inf)
    if found.dtype.kind in "biu":  # a tolerance is for rounding, and a count or an index is never rounded
        error_max = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))
        return Difference(error_max, np.inf if error_max else 0.0)
    got, want = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    error = np.abs(np.where(finite, got, 0.0) - np.where(finite, want, 0.0))
    allowed = tolerance.atol + tolerance.rtol * np.abs(np.where(finite, want, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(same, 0.0, np.where(finite, error / allowed, np.inf))
    return Difference(float(error.max(initial=0.0)), float(excess.max(initial=0.0)))


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two tensors are equal beyond any tolerance; NaN is equal to NaN, and no zero differs from another."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind not in "biu")


def nowhere_a_number(outputs: Sequence[Sequence[NDArray[Any]]]) -> list[int]:
    """Indices of outputs that are NaN everywhere in every one of the results: weights or bounds must be wrong."""
    return [
        index
        for index, same in enumerate(zip(*outputs, strict=True))
        if all(one.size and one.dtype.kind not in "biu" and np.isnan(one.astype(np.float64)).all() for one in same)
    ]
