"""The best sizes of one dimension: the k boundaries that let what was seen run in the least time.

Everything at or below a boundary, and above the one before it, runs at that boundary's cost. Cutting a sorted list into
k segments, each with a cost of its own, is solved exactly by dynamic programming: the best that j segments can do for
the first i values is the best of all that j - 1 can do for fewer, and one segment for the rest (R. Bellman, "On the
approximation of curves by line segments using dynamic programming", Communications of the ACM 4 (6), 1961). The times
that are used elsewhere for it, O(k n log n) and O(k n), need costs that never fall as a size grows; with a few thousand
values O(k n^2) takes well under a second, and needs nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cost = Callable[..., Any]
"""What a run takes at these sizes, one argument for each dimension: arrays that broadcast to the result's shape."""

Bucket = tuple[int, ...]
"""A size for each dimension."""

_BLOCK = 256  # values whose segments are in memory at a time


def fit_boundaries(
    values: ArrayLike,
    weights: ArrayLike,
    k: int,
    cost: Cost,
    *,
    smallest: int | None = None,
    largest: int | None = None,
) -> tuple[int, ...]:
    """The at most k boundaries for which the sum of weight times the cost of the least boundary that covers is least.

    Args:
        values: Sizes that were seen, from 0, in any order and with repetitions.
        weights: How often, or for how much, each was: finite, from 0.
        k: How many boundaries there may be; 1 at least, 2 where a smallest one is given that is not the largest.
        cost: Of an array of sizes; finite. Where it falls as a size grows, a boundary may still only be a size that was
            seen, `smallest` or `largest`.
        smallest: A boundary that has to be there, with none below it.
        largest: The same, with none above it; by default the largest value.

    Returns:
        Boundaries in ascending order. The last one covers everything.

    Raises:
        ValueError: An argument is not allowed.
    """
    sizes, inverse = np.unique(np.maximum(_sizes(values), 1), return_inverse=True)
    amounts = np.bincount(inverse, weights=weighed(weights, sizes[inverse].shape), minlength=len(sizes))
    points, mass = candidates(sizes, amounts[:, None], k, smallest, largest)
    costs = np.broadcast_to(np.asarray(cost(points), np.float64), points.shape)[:, None]
    return pick(points, mass, costs, k, smallest)


def pick(points: Ints, mass: Floats, costs: Floats, k: int, smallest: int | None) -> tuple[int, ...]:
    """The same of what `candidates` prepared, for several classes at once: `mass` and `costs` have a column for each.

    A segment costs the sum over the classes of its mass there times the cost of its last point there.
    """
    if smallest is None:
        return tuple(int(points[end]) for end in segment_ends(mass, costs, k))
    rest = tuple(int(points[1:][end]) for end in segment_ends(mass[1:], costs[1:], k - 1)) if len(points) > 1 else ()
    return (smallest, *rest)


def candidates(sizes: Ints, mass: Floats, k: int, smallest: int | None, largest: int | None) -> tuple[Ints, Floats]:
    """The sizes that may become boundaries, ascending, with the mass of each class (a column) at each of them.

    Args:
        sizes: That were seen, ascending, each once.
        mass: Of shape `[len(sizes), classes]`.
        k: How many boundaries there may be.
        smallest: See `fit_boundaries`; what is below it counts there.
        largest: See `fit_boundaries`.

    Raises:
        ValueError: As `fit_boundaries`.
    """
    top = int(sizes[-1]) if largest is None and len(sizes) else largest
    if top is None:
        raise ValueError("no values were given, and no largest size")
    if len(sizes) and sizes[-1] > top:
        raise ValueError(f"a value is {sizes[-1]}, allowed: up to the largest size, {top}")
    bottom = 1 if smallest is None else smallest
    if not 1 <= bottom <= top:
        raise ValueError(f"the smallest size is {bottom}, allowed: 1 to {top}")
    if k < 1 or (smallest is not None and k < 2 and bottom != top):
        least = 1 if smallest in {None, top} else 2
        raise ValueError(f"k is {k}, allowed: {least} or more")
    ends = [top] if smallest is None else [bottom, top]
    points = np.union1d(sizes[sizes > bottom] if smallest is not None else sizes, np.array(ends, np.int64))
    totals = np.zeros((len(points), mass.shape[1]))
    np.add.at(totals, np.searchsorted(points, sizes), mass)
    return points, totals


def segment_ends(mass: Floats, costs: Floats, k: int) -> list[int]:
    """The last index of each of at most k segments that cost the least together.

    Args:
        mass: Of shape `[n, classes]`, n from 1.
        costs: Of the same shape: what a unit of the class costs in a segment that ends there.
        k: From 1.
    """
    _, cuts = _solved(mass, costs, min(k, len(mass)))
    found: list[int] = []
    end, layer = len(mass), len(cuts) - 1
    while end > 0:
        found.append(end - 1)
        end, layer = int(cuts[layer, end]), layer - 1
    return found[::-1]


def least_costs(mass: Floats, costs: Floats, k: int) -> Floats:
    """What at most 1, 2, ... k segments cost, of shape `[k]`; arguments as of `segment_ends`."""
    best, _ = _solved(mass, costs, min(k, len(mass)))
    return np.concatenate([best[:, -1], np.full(k - len(best), best[-1, -1])])


def _solved(mass: Floats, costs: Floats, layers: int) -> tuple[Floats, Ints]:
    """The tables of the dynamic program.

    `best[j, i]` is what the first i values cost in at most j + 1 segments, and `cuts[j, i]` where the last of these
    begins.
    """
    count = len(mass)
    before = np.vstack([np.zeros(mass.shape[1]), np.cumsum(mass, axis=0)])
    best = np.zeros((layers, count + 1))
    cuts = np.zeros((layers, count + 1), np.int64)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        ends = np.arange(start, stop)
        spans = np.sum(costs[ends] * before[ends + 1], axis=1)[:, None] - costs[ends] @ before[:stop].T
        spans[np.arange(stop)[None, :] > ends[:, None]] = np.inf
        best[0, ends + 1] = spans[:, 0]
        for layer in range(1, layers):
            totals = spans + best[layer - 1, :stop]
            cuts[layer, ends + 1] = chosen = np.argmin(totals, axis=1)
            best[layer, ends + 1] = totals[np.arange(len(ends)), chosen]
    return best, cuts


def weighed(weights: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """The weights as an array of that shape. Raises ValueError."""
    amounts = np.asarray(weights, np.float64)
    if amounts.shape != shape:
        raise ValueError(f"there are {amounts.size} weights, allowed: one for each of {shape[0]} values")
    if not (np.isfinite(amounts).all() and (amounts >= 0).all()):
        raise ValueError("a weight is below 0 or not finite, allowed: 0 and more")
    return amounts


def least_covering(boundaries: Sequence[int], values: Ints) -> Ints:
    """The least boundary that covers each value.

    Args:
        boundaries: Ascending.
        values: Of any shape; at most the last boundary.

    Raises:
        ValueError: A value is larger.
    """
    if values.size and values.max() > boundaries[-1]:
        raise ValueError(f"a value is {values.max()}, allowed: up to the last boundary, {boundaries[-1]}")
    ends = np.asarray(boundaries, np.int64)
    return ends[np.searchsorted(ends, values)]


def _sizes(values: ArrayLike) -> Ints:
    sizes = np.asarray(values, np.int64)
    if sizes.ndim != 1 or (sizes.size and sizes.min() < 0):
        raise ValueError(f"the values have the shape {sizes.shape}, allowed: a list of sizes, each from 0")
    return sizes
