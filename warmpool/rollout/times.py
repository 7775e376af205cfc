"""Times that something took, counted on a logarithmic scale: small, mergeable, and enough for ranks."""

from __future__ import annotations

import math

STEPS_A_DOUBLING = 8  # neighbours differ by 9 %


class Times:
    """How often each time was seen, to within a step of the scale."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[int, int] = {}  # by step; a Counter takes far longer to make and to add to

    def __repr__(self) -> str:
        return f"<Times {self.total}, half within {self.quantile_us(0.5):.0f} us>"

    def add(self, time_us: float) -> None:
        """Count a time in microseconds; less than one counts as one."""
        step = math.floor(STEPS_A_DOUBLING * math.log2(max(time_us, 1.0)))
        self._counts[step] = self._counts.get(step, 0) + 1
        self.total += 1

    def merge(self, other: Times) -> None:
        """Count all that the other has."""
        for step, count in other._counts.items():
            self._counts[step] = self._counts.get(step, 0) + count
        self.total += other.total

    def quantile_us(self, share: float) -> float:
        """The time that this share of them does not exceed, up to a step; 0 for none."""
        left = share * self.total
        for step in sorted(self._counts):
            left -= self._counts[step]
            if left <= 0:
                return float(2 ** ((step + 1) / STEPS_A_DOUBLING))
        return 0.0

    def later_than(self, other: Times, slack_steps: int) -> float:
        """By how much more often one of these is the later one of a pair, than one of the others is; -1 to 1.

        The statistic of Mann and Whitney, "On a test of whether one of two random variables is stochastically larger
        than the other" (1947), on a scale where 0 is no difference, of these times made shorter by the slack.
        """
        before = 0
        score = 0
        theirs = sorted(other._counts.items())
        place = 0
        for step, count in sorted((step - slack_steps, count) for step, count in self._counts.items()):
            while place < len(theirs) and theirs[place][0] < step:
                before += theirs[place][1]
                place += 1
            same = theirs[place][1] if place < len(theirs) and theirs[place][0] == step else 0
            score += count * (2 * before + same - other.total)
        return score / (self.total * other.total)

    def above(self, bound_us: float) -> int:
        """How many are above a time, up to a step."""
        bound = math.floor(STEPS_A_DOUBLING * math.log2(max(bound_us, 1.0)))
        return sum(count for step, count in self._counts.items() if step > bound)
