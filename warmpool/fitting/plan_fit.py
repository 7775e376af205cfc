"""The best buckets that are found for what was seen, of one dimension or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from warmpool.fitting.grids import Limits, fit_within
from warmpool.fitting.nested import fit_nested
from warmpool.fitting.segments import Bucket, Cost
from warmpool.fitting.usage import grid_buckets, usage


@dataclass(frozen=True, slots=True)
class PlanFit:
    """Buckets, what they cost over what they were fitted to, and of which kind they are the best.

    `exact`: nothing of the kind is better, each shape taken to run in its own segment: of one dimension any boundaries;
    of two, lengths of their own for every number of rows (`warmpool.fitting.nested`); of more, grids.
    """

    buckets: tuple[Bucket, ...]
    cost: float
    exact: bool


def fit_buckets(
    shapes: ArrayLike,
    weights: ArrayLike,
    count: int,
    cost: Cost,
    limits: Limits,
    *,
    also: Iterable[Sequence[Bucket]] = (),
) -> PlanFit:
    """The best that is found with at most `count` buckets.

    Args:
        shapes: What was seen, of shape `[n, dimensions]`: sizes from 1.
        weights: How often, or for how much, each was.
        count: How many buckets there may be.
        cost: Of one array for each dimension, which broadcast; it never falls as a size grows.
        limits: What has to be there: the bucket of all largest sizes, and that with the smallest size of a dimension
            that has one. Only one may have.
        also: Other plans that are looked at too, where they have no more buckets: the result is as good as they are.

    Raises:
        ValueError: An argument is not allowed; also where the buckets are fewer than those that have to be there.
    """
    found = [*_found(shapes, weights, count, cost, limits), *((tuple(one), False) for one in also if len(one) <= count)]
    costs = [usage(shapes, weights, buckets, cost).cost for buckets, _ in found]
    best = min(range(len(found)), key=lambda index: (costs[index], len(found[index][0])))
    return PlanFit(found[best][0], costs[best], found[best][1])


def _found(
    shapes: ArrayLike, weights: ArrayLike, count: int, cost: Cost, limits: Limits
) -> Iterator[tuple[tuple[Bucket, ...], bool]]:
    dimensions = len(limits.largest)
    if dimensions == 2:
        sizes = np.asarray(shapes, np.int64).reshape(-1, 2)
        for outer, inner in ((0, 1), (1, 0)):
            if limits.smallest[inner] is None:
                top = (limits.largest[outer], limits.largest[inner])
                turned = cost if outer == 0 else lambda one, other: cost(other, one)
                fit = fit_nested(sizes[:, [outer, inner]], weights, count, turned, top, smallest=limits.smallest[outer])
                yield tuple((one, other) if outer == 0 else (other, one) for one, other in fit.buckets), fit.exact
    else:
        grid = fit_within(shapes, weights, count, cost, limits)
        yield grid_buckets(grid.boundaries), grid.exact
