"""What buckets make of what was seen: which one each shape runs in, what that takes, and how much of it is padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from warmpool.fitting.grids import Grid
from warmpool.fitting.segments import Bucket, Cost, Floats, Ints, least_covering, weighed


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


@dataclass(frozen=True, slots=True)
class Usage:
    """What buckets make of what was seen: padding, and run time in all, in the unit of the cost."""

    padding: Padding
    cost: float


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
    covering = np.stack(
        [least_covering(ends, column) for ends, column in zip(boundaries, seen.T, strict=True)], axis=-1
    )
    return _padding(seen, np.asarray(weights, np.float64), covering)


def usage(shapes: ArrayLike, weights: ArrayLike, buckets: Sequence[Bucket], cost: Cost) -> Usage:
    """What any buckets make of what was seen, each shape in the cheapest that covers it, as it is when it runs.

    Raises:
        ValueError: Something is covered by none.
    """
    sizes = np.array(buckets, np.int64)
    seen = np.asarray(shapes, np.int64).reshape(-1, sizes.shape[1])
    amounts = weighed(weights, (len(seen),))
    times = np.broadcast_to(np.asarray(cost(*sizes.T), np.float64), (len(sizes),))
    chosen = cheapest_covering(seen, sizes, times)
    return Usage(_padding(seen, amounts, sizes[chosen]), float(np.sum(amounts * times[chosen])))


def cheapest_covering(seen: Ints, buckets: Ints, times: Floats) -> Ints:
    """By shape the index of the cheapest bucket that covers it, the smaller one where two are as cheap.

    Raises:
        ValueError: Something is covered by none.
    """
    found = np.full(len(seen), -1)
    for index in np.lexsort((np.prod(buckets, axis=1, dtype=np.float64), times)):
        found[(found < 0) & (seen <= buckets[index]).all(axis=1)] = index
    if (found < 0).any():
        raise ValueError(f"{seen[found < 0][0].tolist()} is covered by no bucket")
    return found


def grid_buckets(grid: Grid) -> tuple[Bucket, ...]:
    """All combinations of a grid's boundaries."""
    return tuple(itertools.product(*grid))


def elements(*sizes: ArrayLike) -> Floats:
    """A cost that counts elements alone: what is least then is padding."""
    total = np.asarray(1.0)
    for size in sizes:
        total = total * np.asarray(size, np.float64)
    return total


def _padding(seen: Ints, amounts: Floats, covering: Ints) -> Padding:
    elements_seen, elements_run = (np.prod(sizes, axis=1, dtype=np.float64) for sizes in (seen, covering))
    return Padding(float(np.sum(amounts * elements_seen)), float(np.sum(amounts * elements_run)))
