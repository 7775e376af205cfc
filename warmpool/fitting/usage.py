"""What a grid of buckets makes of what was seen: how much of it is padding, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from warmpool.fitting.grids import Grid
from warmpool.fitting.segments import Floats, least_covering


@dataclass(frozen=True, slots=True)
class Padding:
    """Elements, as an input has them that has every dimension: of what was asked for, and of the buckets it ran in."""

    elements: float
    padded_elements: float

    @property
    def share(self) -> float:
        """The share of what ran that was padding, 0 to 1."""
        return 1.0 - self.elements / self.padded_elements if self.padded_elements else 0.0

    @property
    def wasted(self) -> float:
        """Elements that were padding."""
        return self.padded_elements - self.elements


def padding(shapes: ArrayLike, weights: ArrayLike, boundaries: Grid) -> Padding:
    """The padding of a grid over what was seen, each in the least bucket that covers it.

    Args:
        shapes: Of shape `[n, dimensions]`, or `[n]` for one dimension.
        weights: How often each was.
        boundaries: Of each dimension.

    Raises:
        ValueError: Something is larger than every bucket.
    """
    seen = np.asarray(shapes, np.int64).reshape(-1, len(boundaries))
    amounts = np.asarray(weights, np.float64)
    covering = np.stack(
        [least_covering(ends, column) for ends, column in zip(boundaries, seen.T, strict=True)], axis=-1
    )
    elements = float(np.sum(amounts * np.prod(seen, axis=1, dtype=np.float64)))
    return Padding(elements, float(np.sum(amounts * np.prod(covering, axis=1, dtype=np.float64))))


def elements(*sizes: ArrayLike) -> Floats:
    """A cost that counts elements alone: what is least then is padding."""
    total = np.asarray(1.0)
    for size in sizes:
        total = total * np.asarray(size, np.float64)
    return total
