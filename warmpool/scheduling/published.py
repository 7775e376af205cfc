"""What the run times measured at publish say about a lane: the assumption for buckets that have not run there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

OVERHEADS_US = tuple(2.0**power for power in range(2, 15))
PULL = 0.2  # deviation that a factor of two away from the assumed overhead has to save, of one bucket
PRIOR_WEIGHT = 2.0  # batches that a factor outweighs that was believed before
BUCKETS_MIN = 3  # of a model, before which nothing is said of how well its measurements agree
DOUBT = math.log(3.0)
DOUBT_MIN, DOUBT_MAX = 0.2, math.log(5.0)
US_MIN, US_MAX = 0.1, 1e12  # nobody measures less; 11 days


def sane_us(us: float) -> float:
    """A time in microseconds, which a file or a clock may say is anything."""
    return min(max(us, US_MIN), US_MAX)


@dataclass(frozen=True, slots=True)
class Took:
    """How long batches of a bucket took; each of these times stands for so many batches."""

    model: str
    published_us: float
    times_us: Sequence[float]
    weight: float = 1.0


class Published:
    """A bucket is assumed to take overhead + published * factor.

    The overhead is the lane's, the way there and back, of which a measurement at publish knows nothing: a small
    executable takes several times as long as it runs. The factor is how wrong all measurements of a model are, since
    they were made on a busier or slower machine. For a model that has not run it is the median of all models', two that
    were measured rightly added: one that was not does not speak for others, three that agree mean another machine.

    Args:
        overhead_us: What is assumed until batches have run, above 0.
    """

    __slots__ = ("_assumed_us", "_doubts", "_factor", "_factors", "_overhead_us")

    def __init__(self, overhead_us: float) -> None:
        self._assumed_us = self._overhead_us = overhead_us
        self._factor = 1.0
        self._factors: dict[str, float] = {}
        self._doubts: dict[str, float] = {}

    def assumed_us(self, model: str, published_us: float) -> float:
        """What a bucket takes of which only the measurement is known."""
        return sane_us(self._overhead_us + sane_us(published_us) * self._factors.get(model, self._factor))

    def doubt(self, model: str) -> float:
        """The logarithm of how many times as much as assumed a bucket of the model may take."""
        return self._doubts.get(model, DOUBT)

    def fit(self, took: Sequence[Took]) -> None:
        """Learn from what batches took, of one bucket at least.

        The overhead is the power of two with which they deviate least from what is assumed (least absolute deviations,
        of logarithms; P. Bloomfield, W. L. Steiger, 1983), and every factor a median: no minority of wrong measurements
        moves either far. A few buckets fit many overheads, so one far from what is assumed has to fit much better.
        """
        models: defaultdict[str, list[Took]] = defaultdict(list)
        for one in took:
            models[one.model].append(one)
        pull = PULL / len(took)

        def badness(overhead_us: float) -> float:
            deviation = sum(
                _deviation(own, overhead_us, _factor(own, overhead_us, self._factor)) * len(own)
                for own in models.values()
            )
            return deviation / len(took) + pull * abs(math.log2(overhead_us / self._assumed_us))

        self._overhead_us = min((self._assumed_us, *OVERHEADS_US), key=badness)
        for model, own in models.items():
            factor = self._factors[model] = _factor(own, self._overhead_us, self._factor)
            if len(own) >= BUCKETS_MIN:
                doubt = 3.0 * _deviation(own, self._overhead_us, factor)
                self._doubts[model] = min(max(doubt, DOUBT_MIN), DOUBT_MAX)
        self._factor = math.exp(median([0.0, 0.0, *map(math.log, self._factors.values())]))


def _factor(took: Sequence[Took], overhead_us: float, before: float) -> float:
    """The weighted median of the factors by which batches ran longer than published, and of what was believed before.

    A batch weighs as much as the run time makes of its whole time: a small one says nothing of the factor.
    """
    votes = [(before, PRIOR_WEIGHT)]
    for one in took:
        published_us = sane_us(one.published_us)
        weight = one.weight * published_us / (overhead_us + published_us)
        votes += [(max(time_us - overhead_us, US_MIN) / published_us, weight) for time_us in one.times_us]
    votes.sort()
    rest = sum(weight for _, weight in votes) / 2.0
    for factor, weight in votes:
        rest -= weight
        if rest <= 0.0:
            return factor
    return before  # only rounding could lead here


def _deviation(took: Sequence[Took], overhead_us: float, factor: float) -> float:
    """The mean over buckets of how far the logarithms of their times are from what is assumed, about."""
    return sum(
        abs(math.log(median(one.times_us) / (overhead_us + sane_us(one.published_us) * factor))) for one in took
    ) / len(took)
