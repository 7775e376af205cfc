"""What the run times measured at publish say about a lane: the assumption for buckets that have not run there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

OVERHEADS_US = tuple(2.0**power for power in range(2, 15))
PULL = 0.2  # deviation that a factor of two away from the assumed overhead has to save, of one bucket
TIMES_MIN = 12  # before which nothing is said of how well the measurements agree
DOUBT = math.log(3.0)
DOUBT_MIN, DOUBT_MAX = 0.2, math.log(5.0)
US_MIN, US_MAX = 0.1, 1e12  # nobody measures less; 11 days


def log_us(us: float) -> float:
    """The logarithm of a time in microseconds, which may be anything that a file or a clock says."""
    return math.log(min(max(us, US_MIN), US_MAX))


class Published:
    """A bucket is assumed to take (overhead + published) * factor, of which overhead and factor are the lane's.

    The overhead is the way to the lane and back, of which a measurement at publish knows nothing: a small executable
    takes several times as long as it runs. The factor is how wrong all measurements are, made on a busier or
    slower machine.

    Args:
        overhead_us: What is assumed until batches have run, above 0.

    Attributes:
        doubt: The logarithm of by how many times an assumption may be wrong.
    """

    __slots__ = ("_assumed_us", "_factor", "_overhead_us", "doubt")

    def __init__(self, overhead_us: float) -> None:
        self._assumed_us = self._overhead_us = overhead_us
        self._factor = 0.0
        self.doubt = DOUBT

    def assumed(self, published_us: float) -> float:
        """The logarithm of the microseconds that a bucket takes of which only the measurement is known."""
        return log_us(self._overhead_us + published_us) + self._factor

    def fit(self, took: Sequence[tuple[float, Sequence[float]]]) -> None:
        """Learn from what batches took: by bucket what was published, and logarithms of microseconds; neither is empty.

        The factor is the median one of all batches, the overhead the power of two with which they deviate least from it
        (least absolute deviations; P. Bloomfield, W. L. Steiger, 1983): no minority of wrong measurements moves either
        far. A few buckets fit many overheads, so one far from what is assumed has to fit much better.
        """
        pull = PULL / len(took)

        def badness(overhead_us: float) -> float:
            return self._fitted(took, overhead_us)[0] + pull * abs(math.log2(overhead_us / self._assumed_us))

        self._overhead_us = min((self._assumed_us, *OVERHEADS_US), key=badness)
        deviation, self._factor = self._fitted(took, self._overhead_us)
        if sum(len(times) for _, times in took) >= TIMES_MIN:
            self.doubt = min(max(3.0 * deviation, DOUBT_MIN), DOUBT_MAX)

    @staticmethod
    def _fitted(took: Sequence[tuple[float, Sequence[float]]], overhead_us: float) -> tuple[float, float]:
        """The mean deviation from the factor, and the factor."""
        factors: list[float] = []
        for published_us, times in took:
            expected = log_us(overhead_us + published_us)
            factors += [time - expected for time in times]
        factor = median(factors)
        return sum(abs(one - factor) for one in factors) / len(factors), factor
