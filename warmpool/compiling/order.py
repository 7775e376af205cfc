"""Which missing executable is made next: decisions over values.

What an executable gains is predicted: for every shape that callers sent, how often it came times what its run would
get cheaper than on the cheapest bucket that there is. The one that gains most comes first, and counts as there for
those after it. So what nothing covers comes before all else, coarse before fine (a coarse bucket covers more), the most
used first: it is the greedy choice for a sum of best choices, which is submodular, hence at any moment at least 1 - 1/e
of what any choice of as many would gain (G. Nemhauser, L. Wolsey, M. Fisher, Mathematical Programming 14, 1978).

Minimum sets come before all, the CPU lane's after the primary's, for without them there is no answer at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpool.compiling.gaps import Gap, Side
from warmpool.selection import Sizes

RUN_US = 100.0  # of a run, whatever its size: sharing a batch pays
UNCOVERED_US = 1e9  # for a row that nothing covers
UNSEEN_WEIGHT = 1e-6  # of a shape that nobody sent yet, in requests: every bucket has one
LADDER_WEIGHT = 1e-3  # of a request for the CPU lane, which gets few
NEEDS_MAX = 128  # the most frequent shapes of a method are looked at
GREEDY_MAX = 64  # of a method are put in order one after the other
PLACES_MAX = 8  # of a job


@dataclass(frozen=True, slots=True)
class Demand:
    """What one lane's executables of a method are for.

    Attributes:
        warm: The buckets that there are.
        needs: What callers sent: the size of each dimension, and how often it came.
    """

    warm: Sequence[Sizes] = ()
    needs: Sequence[tuple[Sizes, float]] = ()


class Ranked(NamedTuple):
    """A gap, and what closing it gains after those before it: microseconds, over all that callers sent."""

    gap: Gap
    gain_us: float


def ranked(gaps: Iterable[Gap], demands: Mapping[Side, Demand]) -> list[Ranked]:
    """All gaps, the next one to close first."""
    found: list[Ranked] = []
    by_side = attrgetter("side")
    for of, some in groupby(sorted(gaps, key=by_side), key=by_side):
        found += _greedy(list(some), demands.get(of, Demand()))
    return sorted(found, key=lambda one: (_tier(one.gap), -one.gain_us))  # stable: greedy gains never grow


def jobs_of(found: Sequence[Ranked], at_a_time: int, alone: Collection[str] = ()) -> list[list[Gap]]:
    """The gaps in the jobs that close them, one after the other.

    Together goes what shares references with the first of a job, or is needed with it.

    Args:
        found: As `ranked` gives them.
        at_a_time: How many can be compiled at a time.
        alone: Keys of gaps that get a job of their own, after all others: one of them may do harm.
    """
    jobs: list[list[Gap]] = []
    left = [gap for gap, _ in found if gap.key not in alone]
    while left:
        job = _next_job(left, at_a_time)
        jobs.append(job)
        left = [gap for gap in left if gap not in job]
    return jobs + [[gap] for gap, _ in found if gap.key in alone]


def _next_job(left: Sequence[Gap], at_a_time: int) -> list[Gap]:
    first = left[0]
    same = [gap for gap in left if (gap.target, gap.ladder) == (first.target, first.ladder)]
    if first.minimum:
        return [gap for gap in same if gap.minimum]
    shared = [gap for gap in same if (gap.side, gap.shape) == (first.side, first.shape)][:PLACES_MAX]
    others = [gap for gap in same if gap not in shared]
    return shared + others[: max(0, at_a_time - len(shared))]


def costs_us(buckets: Sequence[Sizes], needs: Sequence[Sizes], batch: str, us_an_element: float) -> NDArray[np.float64]:
    """What needs take on buckets, of shape `[buckets, needs]`; infinite where a bucket is too small.

    A need with more rows than a bucket takes several runs. All of them have sizes for the same dimensions.
    """
    found = np.full((len(buckets), len(needs)), RUN_US)
    found += us_an_element * np.array([prod(bucket.values()) for bucket in buckets])[:, None]
    for name in buckets[0] if buckets else ():
        has = np.array([bucket[name] for bucket in buckets])[:, None]
        wants = np.array([need[name] for need in needs])[None, :]
        if name == batch:
            found *= np.maximum(-(-wants // has), 1)
        else:
            found[has < wants] = np.inf
    return found


def _tier(gap: Gap) -> int:
    return (1 if gap.ladder else 0) if gap.minimum else 2


def _greedy(gaps: list[Gap], demand: Demand) -> list[Ranked]:
    table = _Table.of(gaps, demand)
    found: list[Ranked] = []
    left = list(range(len(gaps)))
    minimum_first = [index for index in left if gaps[index].minimum]
    while left:
        gains = table.gains()
        if len(found) == GREEDY_MAX:  # by then other things will have been asked for
            last = sorted(left, key=lambda index: -gains[index])
            return found + [Ranked(gaps[index], float(gains[index])) for index in last]
        among = minimum_first or left
        best = max(among, key=lambda index: (gains[index], -index))
        found.append(Ranked(gaps[best], float(gains[best])))
        table.take(best)
        left.remove(best)
        if best in minimum_first:
            minimum_first.remove(best)
    return found


@dataclass(slots=True)
class _Table:
    """What every need (a column) costs on every gap (a row), and on the best that there is."""

    weights: NDArray[np.float64]
    costs: NDArray[np.float64]
    now: NDArray[np.float64]

    @classmethod
    def of(cls, gaps: Sequence[Gap], demand: Demand) -> _Table:
        batch, us = gaps[0].batch, gaps[0].us_an_element
        weight = LADDER_WEIGHT if gaps[0].ladder else 1.0
        frequent = sorted(demand.needs, key=lambda one: -one[1])[:NEEDS_MAX]
        needs = [*(need for need, _ in frequent), *(gap.bucket for gap in gaps)]
        counts = [*(count for _, count in frequent), *(UNSEEN_WEIGHT for _ in gaps)]
        rows = np.array([max(need.get(batch, 1), 1) for need in needs])
        return cls(
            np.array(counts) * weight,
            costs_us([gap.bucket for gap in gaps], needs, batch, us),
            np.minimum(costs_us(demand.warm, needs, batch, us).min(axis=0, initial=np.inf), UNCOVERED_US * rows),
        )

    def gains(self) -> NDArray[np.float64]:
        """What each gap would gain now."""
        gained: NDArray[np.float64] = np.maximum(self.now - self.costs, 0.0) @ self.weights
        return gained

    def take(self, index: int) -> None:
        """A gap counts as closed."""
        self.now = np.minimum(self.now, self.costs[index])
