"""The last numbers of a stream, and where most of them lie, whatever the others are."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from math import sqrt

FEW = 5  # with fewer numbers than that, what was assumed before counts as two more
CHANCE = 2.0  # standard deviations that are no contradiction yet, about


class Recent:
    """The last `size_max` numbers."""

    __slots__ = ("_latest", "_ordered", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, number: float) -> None:
        """Take a number in, and let the oldest go if there are too many."""
        if len(self._latest) == self._size_max:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        self._latest.append(number)
        insort(self._ordered, number)

    def replace(self, numbers: Iterable[float]) -> None:
        """Take these for all that there are, the oldest first."""
        self._latest = deque(numbers)
        self._ordered = sorted(self._latest)

    def centre(self, believed: float, assumed: float) -> float:
        """Where they lie: `believed` unless they contradict it, then the mean of the middle half of them.

        The midmean (P. J. Huber, "Robust Statistics", 1981, 3.3) heeds no number in the outer quarters, however far off
        it is. Chance alone makes it miss by about the width of that half over the root of how many there are, and twice
        that is no contradiction: what is believed would follow every accident otherwise.
        """
        numbers = self._ordered
        if len(numbers) < FEW:
            numbers = sorted([*numbers, assumed, assumed])
        size = len(numbers)
        cut = min((size + 3) // 4, (size - 1) // 2)
        half = numbers[cut : size - cut]
        centre = sum(half) / len(half)
        return centre if abs(centre - believed) > CHANCE * (half[-1] - half[0]) / sqrt(size) else believed

    @property
    def numbers(self) -> Sequence[float]:
        """All of them, the oldest first."""
        return self._latest

    def ends(self) -> tuple[float, float]:
        """The smallest and the largest. At least one has to be there."""
        return self._ordered[0], self._ordered[-1]

    def tails(self) -> tuple[float, float, float]:
        """What a tenth lies below, what a tenth lies above, and the largest. At least two have to be there."""
        numbers = self._ordered
        tenth = (len(numbers) + 9) // 10
        return numbers[tenth], numbers[-1 - tenth], numbers[-1]
