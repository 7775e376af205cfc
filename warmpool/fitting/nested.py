"""The best buckets of two dimensions that are no grid: every size of the one has sizes of the other of its own.

Large batches are rare and of other lengths than small ones, so of a grid there are buckets that hardly anything runs
in. Here the outer dimension is cut into segments, and what falls into each is cut into segments of the inner dimension,
at the run times of the outer segment's end. Two dynamic programs, one inside the other, give the best of all such plans
with at most so many buckets in all: the inner one (`warmpool.fitting.segments`) for each segment of the outer dimension
and each number of buckets, the outer one over the segments. Grids are among these plans.

Sizes are first thinned out, the outer ones to `OUTER_MAX` and the inner ones to `INNER_MAX`, each to the best so many
of that dimension alone. Where there are no more than that, the result is exactly the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from warmpool.fitting.segments import Bucket, Cost, Floats, Ints, fit_boundaries, least_costs, segment_ends, weighed

OUTER_MAX = 64
INNER_MAX = 256


@dataclass(frozen=True, slots=True)
class NestedFit:
    """Buckets, ascending, and whether no such plan of as many takes less, each shape in its own segments."""

    buckets: tuple[Bucket, ...]
    exact: bool


def fit_nested(
    shapes: ArrayLike,
    weights: ArrayLike,
    count: int,
    cost: Cost,
    largest: tuple[int, int],
    *,
    smallest: int | None = None,
) -> NestedFit:
    """At most `count` buckets for which the sum of weight times cost is least.

    Args:
        shapes: What was seen, of shape `[n, 2]`: sizes of the outer and of the inner dimension, from 1.
        weights: How often, or for how much, each was.
        count: How many buckets there may be.
        cost: Of two arrays that broadcast; it never falls as a size grows.
        largest: The largest sizes: their bucket is always there.
        smallest: An outer size that has to be there, with the largest inner one, and with none below it.

    Raises:
        ValueError: An argument is not allowed; also where the buckets are fewer than those that have to be there.
    """
    sizes = np.asarray(shapes, np.int64).reshape(-1, 2)
    for axis, (column, top) in enumerate(zip(sizes.T, largest, strict=True)):
        if column.size and not (column.min() >= 1 and column.max() <= top):
            raise ValueError(f"sizes of dimension {axis} go from {column.min()} to {column.max()}, allowed: 1 to {top}")
    least = 1 if smallest in {None, largest[0]} else 2
    if count < least:
        raise ValueError(f"the number of buckets is {count}, allowed: {least} or more")
    table = _Table(sizes, weighed(weights, (len(sizes),)), cost, largest, smallest)
    return NestedFit(tuple(sorted(table.buckets(count))), table.whole)


class _Table:
    """What was seen, by outer and inner size.

    Attributes:
        whole: Whether no size was left out.
    """

    def __init__(
        self, shapes: Ints, weights: Floats, cost: Cost, largest: tuple[int, int], smallest: int | None
    ) -> None:
        outer_top, inner_top = largest
        shapes = np.maximum(shapes, [smallest or 1, 1])
        self._cost = cost
        self._begins_full = smallest is not None
        self._outer, outer_whole = _thinned(
            shapes[:, 0], weights, OUTER_MAX, lambda size: cost(size, inner_top), outer_top, smallest
        )
        self._inner, inner_whole = _thinned(
            shapes[:, 1], weights, INNER_MAX, lambda size: cost(outer_top, size), inner_top, None
        )
        self.whole = outer_whole and inner_whole
        self._mass = np.zeros((len(self._outer), len(self._inner)))
        places = (np.searchsorted(self._outer, shapes[:, 0]), np.searchsorted(self._inner, shapes[:, 1]))
        np.add.at(self._mass, places, weights)
        self._costs = np.broadcast_to(
            np.asarray(cost(self._outer[:, None], self._inner[None, :]), np.float64), self._mass.shape
        )

    def buckets(self, count: int) -> list[Bucket]:
        """The best at most `count` of them."""
        size = len(self._outer)
        best = np.full((size + 1, count + 1), np.inf)  # [i, q]: of the first i outer sizes in at most q buckets
        best[0] = 0.0
        came: dict[tuple[int, int], tuple[int, int]] = {}
        for end in range(size):
            for start in range(1 if self._begins_full and end > 0 else 0, end + 1):
                self._extend(best, came, start, end, count)
        found: list[Bucket] = []
        end, left = size, count
        while end > 0:
            start, used = came[end, left]
            mass, costs = self._segment(start, end - 1)
            inner = segment_ends(mass, costs, used)
            found += [(int(self._outer[end - 1]), int(self._inner[place])) for place in inner]
            end, left = start, left - used
        return found

    def _extend(
        self, best: Floats, came: dict[tuple[int, int], tuple[int, int]], start: int, end: int, count: int
    ) -> None:
        """Try a segment of outer sizes as the last of those up to `end`, in every number of buckets."""
        inner = least_costs(*self._segment(start, end), count)
        for used in range(1, count + 1):
            totals = best[start, : count + 1 - used] + inner[used - 1]
            for left in np.flatnonzero(totals < best[end + 1, used:]) + used:
                best[end + 1, left] = totals[left - used]
                came[end + 1, int(left)] = (start, used)

    def _segment(self, start: int, end: int) -> tuple[Floats, Floats]:
        """Mass and costs of a segment of outer sizes, up to the largest inner size that it has to have."""
        mass = np.sum(self._mass[start : end + 1], axis=0)
        full = end == len(self._outer) - 1 or (self._begins_full and end == 0)
        seen = np.flatnonzero(mass)
        stop = len(mass) if full else int(seen[-1]) + 1 if len(seen) else 1
        return mass[:stop, None], self._costs[end, :stop, None]


def _thinned(
    sizes: Ints,
    weights: Floats,
    count: int,
    cost: Callable[[Any], Any],
    largest: int,
    smallest: int | None,
) -> tuple[Ints, bool]:
    """The sizes that may be boundaries, and whether these are all."""
    ends = [largest] if smallest is None else [smallest, largest]
    every = np.union1d(sizes, np.array(ends, np.int64))
    if len(every) <= count:
        return every, True
    kept = fit_boundaries(sizes, weights, count, cost, smallest=smallest, largest=largest)
    return np.array(kept, np.int64), False
