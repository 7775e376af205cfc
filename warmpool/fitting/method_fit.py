"""The plan of one method that fits its traffic, beside those that it is compared with.

What is minimised is the predicted run time of all batches together, each in the cheapest bucket that covers it, at the
cost that was measured on the kind of machine (`warmpool.fitting.costs`). A batch is the rows that ran together and, for
every part of it, that part's own other sizes: rows are what the scheduler made of what came, and the lengths are the
callers', since the scheduler puts rows of about the same lengths together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from warmpool.fitting.costs import MeasuredCost
from warmpool.fitting.grids import Limits, fit_within
from warmpool.fitting.observations import Observations, Seen
from warmpool.fitting.plan_fit import PlanFit, fit_buckets
from warmpool.fitting.segments import Bucket
from warmpool.fitting.unseen import with_unseen
from warmpool.fitting.usage import grid_buckets, usage
from warmpool.inputs import powers_of_two
from warmpool.manifest import DimSpec, ExecutableSpec

OBSERVATIONS_MIN = 200  # batches: fewer say too little of what comes next
TODAY, POWERS, FEWER_POWERS, FITTED, HALF = (
    "today",
    "powers of two",
    "as many powers of two",
    "fitted",
    "fitted, half as many",
)


class TooFew(ValueError):
    """There are too few observations to fit to."""


@dataclass(frozen=True, slots=True)
class PlanUse:
    """A plan, and what it makes of what was seen.

    Attributes:
        name: What it is called in a table.
        buckets: A size for each dimension, in the order of the method's.
        padding: The share of all elements that ran and were padding.
        time_us: Predicted run time of a batch, on average.
    """

    name: str
    buckets: tuple[Bucket, ...]
    padding: float
    time_us: float


@dataclass(frozen=True, slots=True)
class MethodFit:
    """What was found for a method.

    Attributes:
        method: Its name.
        dims: Its dimensions.
        plans: `TODAY` and `FITTED` among them.
        exact: See `warmpool.fitting.plan_fit.PlanFit`.
        fitted_to: Batches, or requests where too few batches were seen.
        seen: All that was seen.
    """

    method: str
    dims: tuple[DimSpec, ...]
    plans: tuple[PlanUse, ...]
    exact: bool
    fitted_to: Observations
    seen: Seen

    def plan(self, name: str) -> PlanUse:
        """One of the plans."""
        return next(plan for plan in self.plans if plan.name == name)

    @property
    def fitted_to_what(self) -> str:
        """'1,234 batches', or requests."""
        what = "requests" if self.fitted_to is self.seen.requests else "batches"
        return f"{self.fitted_to.count:,.0f} {what}"

    @property
    def buckets(self) -> tuple[dict[str, int], ...]:
        """The fitted ones by dimension."""
        return tuple(named(self.dims, bucket) for bucket in self.plan(FITTED).buckets)

    @property
    def gain(self) -> float:
        """The share of today's predicted run time that the fitted plan saves, from 0."""
        return 1.0 - self.plan(FITTED).time_us / self.plan(TODAY).time_us


def named(dims: Sequence[DimSpec], bucket: Bucket) -> dict[str, int]:
    """A bucket with the names of its dimensions."""
    return {dim.name: size for dim, size in zip(dims, bucket, strict=True)}


def fit_method(
    method: str,
    dims: Sequence[DimSpec],
    today: Sequence[Mapping[str, int]],
    executables: Sequence[ExecutableSpec],
    seen: Seen,
    *,
    count: int | None = None,
) -> MethodFit:
    """Fit a method's plan.

    Args:
        method: Its name.
        dims: Its dimensions, as the manifest has them; one at least.
        today: The buckets that it is planned for now.
        executables: Of the target; those of the method say what runs take.
        seen: What was seen of it.
        count: How many buckets it may have; by default as many as it has now.

    Raises:
        TooFew: Fewer than `OBSERVATIONS_MIN` batches were seen.
        ValueError: The count is less than what has to be there, or nothing was measured.
    """
    batches = seen.batches if seen.batches.count >= OBSERVATIONS_MIN else seen.requests
    if batches.count < OBSERVATIONS_MIN:
        raise TooFew(f"{batches.count:.0f} requests were seen, needed: {OBSERVATIONS_MIN}")
    names = [dim.name for dim in dims]
    now = tuple(sorted(tuple(bucket[name] for name in names) for bucket in today))
    cost = MeasuredCost(
        {tuple(spec.bucket[name] for name in names): spec.cost_us for spec in executables if spec.method == method}
    )
    count = len(now) if count is None else count
    fitter = _Fitter(dims, cost, batches)
    fitted = fitter.fit(count, also=now)
    plans = [
        (TODAY, now),
        (POWERS, fitter.powers()),
        (FEWER_POWERS, fitter.fit_powers(count)),
        (FITTED, fitted.buckets),
    ]
    if count // 2 >= fitter.least:
        plans.append((HALF, fitter.fit(count // 2).buckets))
    used = tuple(fitter.used(*plan) for plan in plans)
    return MethodFit(method, tuple(dims), used, fitted.exact, batches, seen)


class _Fitter:
    """Plans for one method's batches.

    Attributes:
        least: How many buckets a plan has at least.
    """

    def __init__(self, dims: Sequence[DimSpec], cost: MeasuredCost, batches: Observations) -> None:
        self._cost = cost
        self._batches = batches
        self._limits = Limits(
            smallest=tuple(dim.sizes[0] if dim.batch else None for dim in dims),
            largest=tuple(dim.sizes[-1] for dim in dims),
        )
        self.least = math.prod(self._limits.least_counts())
        free = [axis for axis, dim in enumerate(dims) if not dim.batch]
        self._shapes, self._weights = with_unseen(batches.shapes, batches.weights, self._limits.largest, free)

    def fit(self, count: int, also: Sequence[Bucket] = ()) -> PlanFit:
        """The best plan of at most so many buckets."""
        others = [also] if also else []
        return fit_buckets(self._shapes, self._weights, count, self._cost, self._limits, also=others)

    def fit_powers(self, count: int) -> tuple[Bucket, ...]:
        """The best grid of powers of two with at most so many buckets: every size counts as the power above it."""
        powers = np.minimum(1 << np.ceil(np.log2(self._shapes)).astype(np.int64), np.array(self._limits.largest))
        grid = fit_within(powers, self._weights, count, self._cost, self._limits)
        return grid_buckets(grid.boundaries)

    def powers(self) -> tuple[Bucket, ...]:
        """All powers of two below the largest size, and that: what is declared where nothing else is."""
        return grid_buckets(tuple(map(powers_of_two, self._limits.largest)))

    def used(self, name: str, buckets: tuple[Bucket, ...]) -> PlanUse:
        """What a plan makes of what was seen, without what was not."""
        found = usage(self._batches.shapes, self._batches.weights, buckets, self._cost)
        return PlanUse(name, buckets, found.padding.share, found.cost / self._batches.count)
