"""How fast a lane is, against how fast it was when its buckets became known: what all of them have in common."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

VOTES_MAX = 10
AGREE_MIN = 8


class Pace:
    """Stays until 8 of the last 10 batches contradict it in the same direction, and then is what these agree on.

    A runs rule of control charts ("Statistical Quality Control Handbook", Western Electric, 1956): a batch that took
    ever so long is one vote, chance hardly ever makes 8 agree, and a lane that became slower is noticed in 8 batches.

    Attributes:
        value: The logarithm of how many times as long batches take now.
        ratio: The same, as a factor.
    """

    __slots__ = ("_votes", "ratio", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.ratio = 1.0
        self._votes: deque[tuple[float, float]] = deque(maxlen=VOTES_MAX)

    def vote(self, pace: float, margin: float) -> float:
        """A batch speaks for this pace (a logarithm), give or take a margin that has to be above 0.

        Returns:
            By how much the pace has moved: 0, or more than the smallest margin.
        """
        self._votes.append((pace, margin))
        slower = [pace for pace, margin in self._votes if pace - margin > self.value]
        faster = [pace for pace, margin in self._votes if pace + margin < self.value]
        agreed = max(slower, faster, key=len)
        if len(agreed) < AGREE_MIN:
            return 0.0
        before, self.value = self.value, median(agreed)
        self.ratio = math.exp(self.value)
        return self.value - before
