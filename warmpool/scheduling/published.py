"""What the run times measured at publish say about a lane: the assumption for buckets that have not run there."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

OVERHEADS_US = tuple(2.0**power for power in range(2, 15))
PULL = 0.2  # deviation that a factor of two away from the assumed overhead has to save, of one bucket
TIMES_MIN = 5  # batches of a model, before which it has no factor of its own
BUCKETS_MIN = 3  # of a model, before which nothing is said of how well its measurements agree
DOUBT = math.log(3.0)
DOUBT_MIN, DOUBT_MAX = 0.2, math.log(5.0)
US_MIN, US_MAX = 0.1, 1e12  # nobody measures less; 11 days


def log_us(us: float) -> float:
    """The logarithm of a time in microseconds, which may be anything that a file or a clock says."""
    return math.log(min(max(us, US_MIN), US_MAX))


@dataclass(frozen=True, slots=True)
class Took:
    """What a bucket of a model really took: logarithms of microseconds, at least one."""

    model: str
    published_us: float
    times: Sequence[float]


class Published:
    """A bucket is assumed to take (overhead + published) * factor.

    The overhead is the lane's, the way there and back, of which a measurement at publish knows nothing: a small
    executable takes several times as long as it runs. The factor is how wrong all measurements of a model are, since
    they were made on a busier or slower machine; the lane's own for models of which too little has run.

    Args:
        overhead_us: What is assumed until batches have run, above 0.
    """

    __slots__ = ("_assumed_us", "_doubts", "_factor", "_factors", "_overhead_us")

    def __init__(self, overhead_us: float) -> None:
        self._assumed_us = self._overhead_us = overhead_us
        self._factor = 0.0
        self._factors: dict[str, float] = {}
        self._doubts: dict[str, float] = {}

    def assumed(self, model: str, published_us: float) -> float:
        """The logarithm of the microseconds that a bucket takes of which only the measurement is known."""
        return log_us(self._overhead_us + published_us) + self._factors.get(model, self._factor)

    def doubt(self, model: str) -> float:
        """The logarithm of by how many times an assumption for a model may be too small."""
        return self._doubts.get(model, DOUBT)

    def fit(self, took: Sequence[Took]) -> None:
        """Learn from what buckets took, at least one.

        Factors are medians, the overhead the power of two with which all times deviate least from their models' factors
        (least absolute deviations; P. Bloomfield, W. L. Steiger, 1983): no minority of wrong measurements moves either
        far. A few buckets fit many overheads, so one far from what is assumed has to fit much better.
        """
        pull = PULL / len(took)

        count = sum(len(one.times) for one in took)

        def badness(overhead_us: float) -> float:
            deviation = sum(_deviation(factors) * len(factors) for factors in _factors(took, overhead_us).values())
            return deviation / count + pull * abs(math.log2(overhead_us / self._assumed_us))

        self._overhead_us = min((self._assumed_us, *OVERHEADS_US), key=badness)
        factors = _factors(took, self._overhead_us)
        buckets = Counter(one.model for one in took)
        self._factor = median(one for own in factors.values() for one in own)
        for model, own in factors.items():
            if len(own) >= TIMES_MIN:
                self._factors[model] = median(own)
                if buckets[model] >= BUCKETS_MIN:
                    self._doubts[model] = min(max(3.0 * _deviation(own), DOUBT_MIN), DOUBT_MAX)


def _factors(took: Sequence[Took], overhead_us: float) -> dict[str, list[float]]:
    """By model: the logarithms of how many times as long as expected each batch took."""
    factors: defaultdict[str, list[float]] = defaultdict(list)
    for one in took:
        expected = log_us(overhead_us + one.published_us)
        factors[one.model] += [time - expected for time in one.times]
    return factors


def _deviation(factors: Sequence[float]) -> float:
    """The mean absolute deviation from the median."""
    middle = median(factors)
    return sum(abs(factor - middle) for factor in factors) / len(factors)
