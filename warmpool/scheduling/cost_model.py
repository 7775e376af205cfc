"""What a batch takes on a lane: as measured at publish, corrected by what the lane's own batches took.

From sent to received, a batch is predicted to take its bucket's level: the centre of the bucket's last batches
(`Recent`), or until there are a few what is assumed from the measurement at publish (`Published`). Two things make
earlier batches worth less. When a bucket's last five all took much longer or shorter than its level, the bucket has
changed, and those before them are forgotten. When batches of different buckets agree (`Pace`), the lane has changed,
and what ran before, of whatever bucket, counts as so much longer. So one paused process moves nothing, a bucket is
right after five batches of its own, and a machine that becomes slower is noticed for all buckets at once.

Nothing is predicted that is far from all that was seen: at most four times the longest of the lane's last 31 batches
and of the bucket's own last five, unless what is assumed from publish is more; and not below the same downwards. That
goes for bounds, too: what stood still for long would count for as many times longer on a lane that became slower.

All of this is done in logarithms, where twice as long and half as long are equally far off.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from statistics import median
from typing import Any

from warmpool.scheduling.pace import Pace, Vote
from warmpool.scheduling.published import Published, Took, sane_us
from warmpool.scheduling.recent import FEW, Recent
from warmpool.scheduling.work import Method
from warmpool.selection import Candidate

OVERHEAD_US = 256.0  # of a round trip on a small machine
RECENT_MAX = 31  # batches of a bucket that are remembered, and of the lane
SPREAD_MIN = 0.05
MARGIN = 1.25  # spreads that a batch may be off without speaking for another pace
CHANGED = 0.5  # how far the last few batches of a bucket are from its level when it has changed
SETTLED = (2 * FEW, RECENT_MAX)  # batches after a bucket became known or changed at which others are compared with it
FAR = math.log(4.0)  # how far a prediction may be from all that was seen

EXCEEDED = 0.02  # the share of batches that may take longer than their bound
WIDTH, WIDTH_MIN, WIDTH_MAX, WIDTH_STEP = 2.0, 1.0, 4.0, 0.2  # spreads from level to bound
BEYOND = 1.25  # a bound is at most so much further from the level than the longest of the recent batches

MOVED, BOUND_MOVED, BOUND_MOVED_SHARE = 0.05, 0.2, 0.4  # the last of how far a bound is from its level
BUCKETS_MAX = 1024
FIT_FIRST, FIT_BUCKETS_MAX = 3, 32  # batches; the buckets that ran last


class _Bucket:
    """What is known of one bucket of one method: logarithms of microseconds.

    `recent` are its batches as they would have been on the lane as it is now, `last` what the last few really took.
    `reference` is what its batches are compared with to see the lane change. It stays, so that changes add up to what
    really changed, while `level` follows the batches. `told` are level and bound when the version became
    `told_version`.
    """

    __slots__ = (
        "batches",
        "bound",
        "bound_us",
        "candidate",
        "last",
        "latest",
        "level",
        "level_us",
        "method",
        "recent",
        "reference",
        "runs",
        "spread",
        "told",
        "told_version",
    )

    def __init__(self, method: Method, candidate: Candidate, level: float, bound: float) -> None:
        self.method = method
        self.candidate = candidate
        self.recent = Recent(RECENT_MAX)
        self.last: deque[float] = deque(maxlen=FEW)
        self.runs = 0
        self.batches = 0  # those that count: since it changed
        self.latest = 0
        self.spread = SPREAD_MIN
        self.reference: float | None = None
        self.told = (level, bound)
        self.told_version = -1
        self.believe(level, bound)

    def believe(self, level: float, bound: float) -> None:
        self.level, self.level_us = level, math.exp(level)
        self.bound, self.bound_us = bound, math.exp(bound)

    def take(self, took: float, number: int) -> None:
        """A batch took this long, as the lane's batch of this number."""
        self.runs += 1
        self.batches += 1
        self.latest = number
        self.recent.add(took)
        self.last.append(took)

    def refer(self, level: float) -> None:
        """Set the reference once it is known, and again once it is known well."""
        if self.reference is None or self.batches in SETTLED:
            self.reference = level

    def forget(self) -> bool:
        """If its last few batches all contradict its level, it has changed: they are all that is known."""
        if self.batches < FEW or min(self.last) - CHANGED <= self.level <= max(self.last) + CHANGED:
            return False
        self.recent.replace(self.last)
        self.batches = FEW
        self._move(median(self.last) - self.level)
        return True

    def shift(self, by: float, kept: int) -> None:
        """The lane has changed: all but so many batches would take this much longer now. Those have the last word."""
        numbers = list(self.recent.numbers)
        before = max(0, len(numbers) - kept)
        self.recent.replace([number + by for number in numbers[:before]] + numbers[before:])
        if self.reference is not None:
            self.reference += by
        self._move(by)
        if kept:
            self.forget()

    def _move(self, by: float) -> None:
        self.believe(self.level + by, self.bound + by)

    def took(self) -> Took:
        """What its batches say of measurements at publish, with more weight once it is known."""
        if self.batches >= FEW:
            return Took(self.method.model, self.candidate.cost_us, [self.level_us], FEW)
        return Took(self.method.model, self.candidate.cost_us, [math.exp(number) for number in self.recent.numbers])

    def tell(self, version: int) -> None:
        """Keep what is believed, before it changes for the first time since the version rose to this."""
        if self.told_version != version:
            self.told, self.told_version = (self.level, self.bound), version

    @property
    def moved(self) -> bool:
        """Whether plans that were made with what was told are to be made anew."""
        level, bound = self.told
        bound_moved = max(BOUND_MOVED, BOUND_MOVED_SHARE * (bound - level))
        return abs(self.level - level) >= MOVED or abs(self.bound - bound) >= bound_moved


class CostModel:
    """Predicted times of one lane's batches, over all the processes of its life.

    Holds at most 1024 buckets, of each the last 31 batches. `observe` takes about 5 us; half a millisecond at the fifth
    batch of a bucket, and when there are twice as many batches as last time; when a bucket or the lane has changed,
    some 20 us more for each bucket. The others take less than 1 us.

    Args:
        overhead_us: What the way to a lane and back is assumed to take until batches have run, above 0.

    Attributes:
        version: Rises when a prediction has moved by 5 % since it rose last, or a bound by 20 % and by 40 % of how
            far it was from its prediction.
    """

    def __init__(self, overhead_us: float = OVERHEAD_US) -> None:
        self.version = 0
        self._buckets: dict[tuple[Method, frozenset[tuple[str, int]]], _Bucket] = {}
        self._published = Published(overhead_us)
        self._pace = Pace()
        self._batches = 0
        self._ran: deque[_Bucket] = deque(maxlen=RECENT_MAX)
        self._seen = Recent(RECENT_MAX)
        self._width = WIDTH
        self._fit_at = FIT_FIRST

    def predicted_us(self, method: Method, candidate: Candidate) -> float:
        """What a batch takes from sent to received by all that is known, above 0."""
        return self._bucket(method, candidate).level_us

    def bound_us(self, method: Method, candidate: Candidate) -> float:
        """What about one batch in fifty takes more than; above the prediction."""
        return self._bucket(method, candidate).bound_us

    def observe(self, method: Method, candidate: Candidate, took_us: float) -> None:
        """A batch took this long from sent to received. Nothing is learned from 0 or less: a clock was set back."""
        if not took_us > 0.0:
            return
        one = self._bucket(method, candidate)
        took = math.log(sane_us(took_us))
        self._adapt_width(one, took)
        self._batches += 1
        one.take(took, self._batches)
        self._ran.append(one)
        self._seen.add(took)
        changed = self._vote(one, took)
        self._believe(one)
        changed = one.forget() or changed
        if changed or self._batches >= self._fit_at or one.runs == FEW:
            self._fit()
            others = [other for other in self._buckets.values() if changed or other.batches < FEW]
        else:
            others = []
        for other in others:
            self._believe(other)
        if one.moved or any(other.moved for other in others):
            self.version += 1

    def forget(self, method: Method) -> None:
        """A method that is gone."""
        self._buckets = {key: one for key, one in self._buckets.items() if key[0] is not method}

    def describe(self) -> list[dict[str, Any]]:
        """What /v1/status says: every bucket that was asked about, times in microseconds."""
        return [
            {
                "model": one.method.model,
                "method": getattr(one.method, "name", ""),
                "bucket": one.candidate.bucket,
                "published_us": one.candidate.cost_us,
                "predicted_us": round(one.level_us, 1),
                "bound_us": round(one.bound_us, 1),
                "runs": one.runs,
            }
            for one in self._buckets.values()
        ]

    def _bucket(self, method: Method, candidate: Candidate) -> _Bucket:
        key = (method, frozenset(candidate.bucket.items()))
        one = self._buckets.get(key)
        if one is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget_one()
            level = math.log(self._published.assumed_us(method.model, candidate.cost_us))
            one = self._buckets[key] = _Bucket(method, candidate, level, level + self._published.doubt(method.model))
            one.tell(self.version)
            one.latest = self._batches
        elif one.candidate is not candidate:  # published or loaded anew
            one.candidate = candidate
            self._believe(one)
        return one

    def _forget_one(self) -> None:
        """Forget a bucket that never ran, of which nothing is lost, or else the one that ran longest ago."""

        def worth(key: tuple[Method, frozenset[tuple[str, int]]]) -> tuple[bool, int]:
            return self._buckets[key].runs > 0, self._buckets[key].latest

        del self._buckets[min(self._buckets, key=worth)]

    def _vote(self, one: _Bucket, took: float) -> bool:
        """Let a batch say whether the lane has changed; if it has, what ran before is worth what it would take now."""
        if one.reference is None:
            return False
        margin = MARGIN * one.spread + self._published.doubt(one.method.model) / one.batches
        change = self._pace.vote(Vote(self._batches, one, took - one.reference, margin))
        if change is None:
            return False
        kept = Counter(list(self._ran)[change.since - self._batches - 1 :])
        for other in self._buckets.values():
            other.tell(self.version)
            other.shift(change.by, kept[other])
        return True

    def _believe(self, one: _Bucket) -> None:
        """Work out level and bound of a bucket anew."""
        one.tell(self.version)
        model = one.method.model
        assumed = math.log(self._published.assumed_us(model, one.candidate.cost_us))
        centre = one.recent.centre(one.level, assumed)
        width = self._published.doubt(model) / (1 if one.batches < FEW else 1 + one.batches)
        if one.batches >= FEW:
            low, high, highest = one.recent.tails()
            one.spread = max(SPREAD_MIN, min(centre - low, high - centre))
            width += max(SPREAD_MIN, min(self._width * (high - centre), BEYOND * (highest - centre)))
            one.refer(centre)
        level = self._sane(centre, assumed, one)
        bound = min(level + width, self._longest(assumed + self._published.doubt(model), one))
        one.believe(level, max(bound, level + SPREAD_MIN))

    def _sane(self, level: float, assumed: float, one: _Bucket) -> float:
        """The nearest level to this that is not far from all that was seen and assumed."""
        if not self._batches:
            return level
        shortest = min((self._seen.ends()[0], *one.last)) - FAR
        return min(max(level, min(shortest, assumed)), self._longest(assumed, one))

    def _longest(self, assumed: float, one: _Bucket) -> float:
        """What is not far from all that was seen, or this."""
        if not self._batches:
            return assumed
        return max(max((self._seen.ends()[1], *one.last)) + FAR, assumed)

    def _adapt_width(self, one: _Bucket, took: float) -> None:
        """Adaptive conformal inference (I. Gibbs, E. Candes, 2021): bounds widen until as few exceed them as may."""
        if one.batches >= FEW:
            step = WIDTH_STEP * ((took > one.bound) - EXCEEDED)
            self._width = min(max(self._width + step, WIDTH_MIN), WIDTH_MAX)

    def _fit(self) -> None:
        """See what the measurements at publish are worth."""
        self._fit_at = 2 * self._batches
        ran = sorted((one for one in self._buckets.values() if one.runs), key=lambda one: -one.latest)
        self._published.fit([one.took() for one in ran[:FIT_BUCKETS_MAX]])
