"""Whose turn it is: models share a lane's time by weight.

Start-time fair queueing (P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996): a model's virtual time
grows by what it uses over its weight, and the one that is behind is next. One that had nothing to run begins where the
others are, so that idleness saves up nothing. While two models wait, what they used differs from their weights by no
more than one run of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class FairShare:
    """The virtual times of one lane's models.

    Args:
        weights: By model, more than 0; a model that is not among them has weight 1.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._times: dict[str, float] = {}
        self._now = 0.0  # the virtual time at which the last run began

    def weight(self, model: str) -> float:
        """The weight of a model."""
        return self._weights.get(model, 1.0)

    def share(self, model: str, waiting: Iterable[str]) -> float:
        """The part of the lane that is a model's while these wait, it among them."""
        return self.weight(model) / sum(map(self.weight, {model, *waiting}))

    def joins(self, model: str) -> None:
        """A model that had nothing waiting has something now."""
        self._times[model] = max(self._now, self._times.get(model, 0.0))

    def time(self, model: str) -> float:
        """A model's virtual time: of those that wait, the least is next."""
        return self._times.get(model, 0.0)

    def used(self, model: str, cost_us: float) -> None:
        """A model has got a run of the lane."""
        self._now = self.time(model)
        self._times[model] = self._now + cost_us / self.weight(model)

    def took(self, model: str, more_us: float) -> None:
        """A run took so much longer than what was counted for it; shorter where that is negative."""
        self._times[model] = self.time(model) + more_us / self.weight(model)
