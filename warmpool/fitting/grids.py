"""The best sizes of several dimensions at once: a grid of buckets, every combination of each dimension's boundaries.

What a batch of 8 rows takes depends on their length, so the best rows depend on the lengths and the other way round.
With the boundaries of all dimensions but one fixed, those of the one are a problem of `warmpool.fitting.segments`,
which is solved exactly. So:

- where the boundaries of all but one dimension can be chosen in few ways, every one of them is tried, and the grid is
  the best there is (where costs never fall as a size grows);
- otherwise dimensions are improved in turn, each exactly, until none gets better, from several grids: the powers of
  two, quantiles, each dimension's best beside the largest others, and seeded random ones. The result is at least as
  good as each of these. It need not be the best grid; in twelve cases of recorded lengths and drawn rows in which all
  could be tried, it was.

`GridFit.exact` says which it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from warmpool.fitting.segments import Cost, Floats, Ints, candidates, least_covering, pick, weighed
from warmpool.inputs import powers_of_two

Grid = tuple[tuple[int, ...], ...]
"""The boundaries of each dimension, ascending."""

_EXHAUSTED_MAX = 128  # ways to choose all dimensions but one that are all tried: at some milliseconds each
_RANDOM_STARTS = 6
_TURNS_MAX = 50  # each of them made it better; a handful is usual


@dataclass(frozen=True, slots=True)
class GridFit:
    """A grid, the sum of weight times cost that it was chosen for, and whether no grid of that size has less."""

    boundaries: Grid
    cost: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """The least and the largest boundary that each dimension has to have; see `fit_boundaries`."""

    smallest: tuple[int | None, ...]
    largest: tuple[int, ...]

    def least_counts(self) -> tuple[int, ...]:
        """How many boundaries each dimension has at least."""
        return tuple(1 if low in {None, high} else 2 for low, high in zip(self.smallest, self.largest, strict=True))


def fit_grid(
    shapes: ArrayLike,
    weights: ArrayLike,
    counts: Sequence[int],
    cost: Cost,
    limits: Limits,
) -> GridFit:
    """A grid with at most so many boundaries in each dimension.

    Args:
        shapes: What was seen, of shape `[n, dimensions]`: sizes from 0.
        weights: How often, or for how much, each was.
        counts: How many boundaries each dimension may have.
        cost: Of one array for each dimension, which broadcast; finite.
        limits: What has to be in it.

    Raises:
        ValueError: An argument is not allowed.
    """
    seen = _Seen(*_checked(shapes, weights, len(counts)), cost, limits, tuple(counts))
    axis = seen.decided_by()
    if axis is None:
        settled = [seen.settled(start) for start in seen.starts()]
    else:
        settled = [seen.improved(start, axis) for start in seen.all_beside(axis)]
    best = min(settled, key=seen.total)
    return GridFit(best, seen.total(best), exact=axis is not None)


def fit_within(
    shapes: ArrayLike,
    weights: ArrayLike,
    count: int,
    cost: Cost,
    limits: Limits,
) -> GridFit:
    """The best that `fit_grid` finds with at most `count` buckets in all, over all ways to share them out.

    `exact` says whether that holds for every one of the ways.

    Raises:
        ValueError: An argument is not allowed; also where the buckets are fewer than `limits` asks for.
    """
    least = limits.least_counts()
    if count < math.prod(least):
        raise ValueError(f"the number of buckets is {count}, allowed: {math.prod(least)} or more")
    checked, amounts = _checked(shapes, weights, len(least))
    useful = [len(np.unique(column)) + 2 for column in checked.T]
    fits = [fit_grid(checked, amounts, counts, cost, limits) for counts in _shares(count, least, useful)]
    best = min(fits, key=lambda fit: fit.cost)
    return GridFit(best.boundaries, best.cost, exact=all(fit.exact for fit in fits))


def cost_of(shapes: ArrayLike, weights: ArrayLike, boundaries: Grid, cost: Cost) -> float:
    """The sum of weight times the cost of the least covering bucket. Raises ValueError where nothing covers."""
    seen, amounts = _checked(shapes, weights, len(boundaries))
    covering = [least_covering(ends, column) for ends, column in zip(boundaries, seen.T, strict=True)]
    return float(np.sum(amounts * np.asarray(cost(*covering), np.float64)))


class _Seen:
    """What was seen, and what a grid for it costs."""

    def __init__(self, shapes: Ints, weights: Floats, cost: Cost, limits: Limits, counts: tuple[int, ...]) -> None:
        self._shapes = shapes
        self._weights = weights
        self._cost = cost
        self._limits = limits
        self._counts = counts
        self._columns = [np.unique(column, return_inverse=True) for column in shapes.T]
        self._points = []  # the sizes of each dimension that may be boundaries, and the weight of each
        for axis, (sizes, inverse) in enumerate(self._columns):
            amounts = np.bincount(inverse, weights=weights, minlength=len(sizes))
            points, mass = candidates(sizes, amounts[:, None], *self._limited(axis))
            self._points.append((points, mass[:, 0]))

    def decided_by(self) -> int | None:
        """The dimension with the most choices, if all choices of the others can be tried; None if they are too many."""
        ways = [math.comb(*self._to_choose(axis)) for axis in range(len(self._counts))]
        most = max(range(len(ways)), key=ways.__getitem__)
        return most if math.prod(ways[:most] + ways[most + 1 :]) <= _EXHAUSTED_MAX else None

    def all_beside(self, axis: int) -> Iterator[Grid]:
        """Every choice of all dimensions but this one."""
        yield from itertools.product(
            *(self._choices(one) if one != axis else [self._only_largest(one)] for one in range(len(self._counts)))
        )

    def starts(self) -> list[Grid]:
        """Grids to begin with."""
        axes = range(len(self._counts))
        alone = tuple(self._only_largest(axis) for axis in axes)
        generator = np.random.default_rng(0)
        return [
            tuple(
                self._completed(axis, powers_of_two(self._limits.largest[axis])[-self._counts[axis] :]) for axis in axes
            ),
            tuple(self._completed(axis, self._quantiles(axis)) for axis in axes),
            tuple(self._best(alone, axis) for axis in axes),
            *(tuple(self._drawn(axis, generator) for axis in axes) for _ in range(_RANDOM_STARTS)),
        ]

    def settled(self, grid: Grid) -> Grid:
        """The grid with its dimensions improved in turn until that helps no more."""
        order = sorted(range(len(grid)), key=lambda axis: len(self._points[axis][0]), reverse=True)
        total = self.total(grid)
        for _ in range(_TURNS_MAX):
            for axis in order:
                grid = self.improved(grid, axis)
            before, total = total, self.total(grid)
            if total >= before:
                break
        return grid

    def improved(self, grid: Grid, axis: int) -> Grid:
        """The grid with the best boundaries of one dimension beside those of the others."""
        return (*grid[:axis], self._best(grid, axis), *grid[axis + 1 :])

    def total(self, grid: Grid) -> float:
        """What it costs."""
        return cost_of(self._shapes, self._weights, grid, self._cost)

    def _best(self, grid: Grid, axis: int) -> tuple[int, ...]:
        others = [one for one in range(len(grid)) if one != axis]
        counts = [len(grid[one]) for one in others]
        classes = np.zeros(len(self._shapes), np.int64)
        for one, count in zip(others, counts, strict=True):
            classes = classes * count + np.searchsorted(np.asarray(grid[one]), self._shapes[:, one])
        sizes, inverse = self._columns[axis]
        mass = np.zeros((len(sizes), math.prod(counts)))
        np.add.at(mass, (inverse, classes), self._weights)
        k, smallest, largest = self._limited(axis)
        points, mass = candidates(sizes, mass, k, smallest, largest)
        arguments: list[Ints] = [points[:, None]] * len(grid)
        combined = np.array(list(itertools.product(*(grid[one] for one in others))), np.int64)
        combined = combined.reshape(math.prod(counts), len(others))
        for place, one in enumerate(others):
            arguments[one] = combined[None, :, place]
        costs = np.broadcast_to(np.asarray(self._cost(*arguments), np.float64), mass.shape)
        return pick(points, mass, costs, k, smallest)

    def _limited(self, axis: int) -> tuple[int, int | None, int]:
        return self._counts[axis], self._limits.smallest[axis], self._limits.largest[axis]

    def _to_choose(self, axis: int) -> tuple[int, int]:
        """Of how many sizes how many are to be chosen, beside those that have to be there."""
        free, fixed = self._free(axis)
        return len(free), min(self._counts[axis] - len(fixed), len(free))

    def _free(self, axis: int) -> tuple[Ints, set[int]]:
        points, _ = self._points[axis]
        _, smallest, largest = self._limited(axis)
        fixed = {largest} if smallest is None else {smallest, largest}
        return points[~np.isin(points, list(fixed))], fixed

    def _choices(self, axis: int) -> Iterator[tuple[int, ...]]:
        free, fixed = self._free(axis)
        for chosen in itertools.combinations(map(int, free), self._to_choose(axis)[1]):
            yield tuple(sorted({*chosen, *fixed}))

    def _only_largest(self, axis: int) -> tuple[int, ...]:
        return tuple(sorted(self._free(axis)[1]))

    def _completed(self, axis: int, boundaries: Iterable[int]) -> tuple[int, ...]:
        """As many of the boundaries as there may be, the larger ones first, with those that have to be there."""
        _, smallest, largest = self._limited(axis)
        fixed = self._free(axis)[1]
        inner = sorted(size for size in set(boundaries) - fixed if (smallest or 0) < size < largest)
        room = self._counts[axis] - len(fixed)
        kept = inner[-room:] if room > 0 else []
        return tuple(sorted({*kept, *fixed}))

    def _quantiles(self, axis: int) -> list[int]:
        points, mass = self._points[axis]
        reached = np.cumsum(mass) / mass.sum() if mass.sum() else np.linspace(0, 1, len(mass))
        levels = np.arange(1, self._counts[axis]) / self._counts[axis]
        return [int(points[min(place, len(points) - 1)]) for place in np.searchsorted(reached, levels)]

    def _drawn(self, axis: int, generator: np.random.Generator) -> tuple[int, ...]:
        free, fixed = self._free(axis)
        chosen = generator.choice(len(free), self._to_choose(axis)[1], replace=False)
        return tuple(sorted({*map(int, free[chosen]), *fixed}))


def _shares(count: int, least: Sequence[int], useful: Sequence[int]) -> list[tuple[int, ...]]:
    """Numbers for each dimension whose product is at most `count`, none of which could be raised usefully."""
    ranges = [range(low, max(low, min(count, most)) + 1) for low, most in zip(least, useful, strict=True)]
    within = [counts for counts in itertools.product(*ranges) if math.prod(counts) <= count]
    return [one for one in within if not any(one != other and all(map(int.__le__, one, other)) for other in within)]


def _checked(shapes: ArrayLike, weights: ArrayLike, dimensions: int) -> tuple[Ints, Floats]:
    sizes = np.asarray(shapes, np.int64).reshape(-1, dimensions)
    if sizes.size and sizes.min() < 0:
        raise ValueError(f"a size is {sizes.min()}, allowed: 0 and more")
    return np.maximum(sizes, 1), weighed(weights, (len(sizes),))
