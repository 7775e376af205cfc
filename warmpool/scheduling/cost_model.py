"""What a batch takes on a lane: measured at publish, and corrected by what the lane's own batches took."""

from __future__ import annotations

import math
from typing import Any

from warmpool.scheduling.work import Method
from warmpool.selection import Candidate

MOVED = 0.05  # in logarithms: predictions that moved less are no reason to plan anew
GAIN = 0.2
SPREAD = math.log(3.0)  # of a bucket that never ran


class _Bucket:
    """What is known of one bucket of one method. Logarithms of microseconds, and of ratios."""

    __slots__ = ("bucket", "method", "published_us", "residual", "runs", "spread", "told")

    def __init__(self, method: Method, candidate: Candidate) -> None:
        self.method = method
        self.bucket = candidate.bucket
        self.published_us = max(candidate.cost_us, 1.0)
        self.residual = 0.0
        self.spread = SPREAD
        self.runs = 0
        self.told = 0.0


class CostModel:
    """Predicted times of one lane's batches, from sent to received, over all the processes of its life.

    Attributes:
        version: Rises when a prediction has moved by 5 % since it last rose: plans are then to be made anew.
    """

    def __init__(self) -> None:
        self.version = 0
        self._buckets: dict[tuple[Method, frozenset[tuple[str, int]]], _Bucket] = {}

    def predicted_us(self, method: Method, candidate: Candidate) -> float:
        """What a batch takes, by all that is known; above 0."""
        known = self._known(method, candidate)
        return known.published_us * math.exp(known.residual)

    def bound_us(self, method: Method, candidate: Candidate) -> float:
        """What a batch hardly ever takes more than; at least what is predicted."""
        known = self._known(method, candidate)
        return known.published_us * math.exp(known.residual + known.spread)

    def observe(self, method: Method, candidate: Candidate, took_us: float) -> None:
        """A batch took this long, from sent to received; what is not above 0 (a clock was set) says nothing."""
        if not 0 < took_us < math.inf:
            return
        known = self._known(method, candidate)
        known.runs += 1
        error = math.log(took_us / known.published_us) - known.residual
        known.residual += GAIN * max(-1.0, min(1.0, error))
        known.spread += GAIN * (min(1.0, 2 * abs(error)) - known.spread)
        if abs(known.residual - known.told) >= MOVED:
            known.told = known.residual
            self.version += 1

    def describe(self) -> list[dict[str, Any]]:
        """What /v1/status says: every bucket that was asked about, its times in microseconds, how often it ran."""
        return [
            {
                "model": known.method.model,
                "method": getattr(known.method, "name", ""),
                "bucket": known.bucket,
                "published_us": known.published_us,
                "predicted_us": known.published_us * math.exp(known.residual),
                "bound_us": known.published_us * math.exp(known.residual + known.spread),
                "runs": known.runs,
            }
            for known in self._buckets.values()
        ]

    def _known(self, method: Method, candidate: Candidate) -> _Bucket:
        key = (method, frozenset(candidate.bucket.items()))
        known = self._buckets.get(key)
        if known is None:
            known = self._buckets[key] = _Bucket(method, candidate)
        return known
