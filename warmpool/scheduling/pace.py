"""When a lane has become faster or slower as a whole: what its batches of different buckets agree on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from statistics import median
from typing import NamedTuple

VOTES_MAX = 10
AGREE_MIN = 8
OTHERS_MIN = 3  # of those that agree, that are of other buckets than the one with the most


class Vote(NamedTuple):
    """A batch took longer by this much (of logarithms) than its bucket did, give or take a margin above 0."""

    batch: int
    bucket: Hashable
    change: float
    margin: float


class Change(NamedTuple):
    """The lane takes longer by this much (of logarithms), since this batch or a little earlier."""

    by: float
    since: int


class Pace:
    """Has changed by the median of the last 10 batches when 8 of them agree, 3 not of the bucket that has most of them.

    Those agree that say more than half of it, and more than chance explains. A runs rule of control charts
    ("Statistical Quality Control Handbook", Western Electric, 1956): a batch that took ever so long is one vote, chance
    hardly ever makes 8 agree, and a lane that became slower is noticed in 8 batches. A bucket that changed alone is no
    matter of the lane, however often it runs.
    """

    __slots__ = ("_votes",)

    def __init__(self) -> None:
        self._votes: deque[Vote] = deque(maxlen=VOTES_MAX)

    def vote(self, vote: Vote) -> Change | None:
        """Count a batch. After a change, that is what later votes are to be compared with: all votes are new."""
        self._votes.append(vote)
        if sum([abs(one.change) > one.margin for one in self._votes]) < AGREE_MIN:  # as it is almost always
            return None
        by = median(one.change for one in self._votes)
        agreed = [one for one in self._votes if by * one.change > by * by / 2 and abs(one.change) > one.margin]
        if len(agreed) < AGREE_MIN:
            return None
        ((_, most),) = Counter(one.bucket for one in agreed).most_common(1)
        if len(agreed) - most < OTHERS_MIN:
            return None
        self._votes.clear()
        return Change(by, agreed[0].batch)
