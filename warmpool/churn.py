"""Whether an instance has what it needs: a state machine over what is missing and how requests fare, with hysteresis.

    STEADY     nothing is missing, and requests are covered
    FILLING    something that is planned is missing, and requests are covered by what there is
    CHURNING   more is missing than can be made soon, or requests fall through to the CPU lane, are held or refused

A new version, a new jaxlib, an emptied store or shapes that drift all look alike from here. What churns makes the
coarse and the most used buckets first, so that requests are covered again soon. It ends only once requests have been
covered for a while, so that a state says something of more than a moment.

No clock, no I/O: whoever looks says what it saw, and when.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

SOON_S = 30.0  # what takes longer to make is churn
CALM_S = 10.0  # for so long requests have to be covered before churn is over
FALLEN_SHARE_MAX = 0.05  # of the requests of the last `CALM_S`
FALLEN_MIN = 3  # fewer say nothing


class State(StrEnum):
    """See above."""

    STEADY = "steady"
    FILLING = "filling"
    CHURNING = "churning"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is so at one moment.

    Attributes:
        missing: Executables that are planned, and neither warm nor left out for want of room.
        over_in_s: Seconds until the missing ones are made, as predicted; None where nobody predicts it.
        requests: All that came so far.
        fallen: Those of them that the warm executables of the primary lane did not cover.
    """

    missing: int
    over_in_s: float | None
    requests: int
    fallen: int


class Churn:
    """The state of one instance. Times are seconds of one monotonic clock.

    Attributes:
        state: As of the last look.
        since_s: When that began.
        missing: How much was missing at the last look.
        fallen_share: The share of the last requests that fell through, 0 to 1.
    """

    def __init__(self, now_s: float) -> None:
        self.state = State.FILLING
        self.since_s = now_s
        self.missing = 0
        self.fallen_share = 0.0
        self._seen: deque[tuple[float, int, int]] = deque()  # when, requests, fallen: the first is `CALM_S` old
        self._most = (0, now_s)  # how much was missing when it was most, and when that was
        self._over_in_s: float | None = None
        self._stirred_s = now_s  # when there was a reason for churn for the last time

    def look(self, seen: Seen, now_s: float) -> None:
        """Take in what is so now."""
        self._count(seen, now_s)
        self.missing = seen.missing
        self._over_in_s = self._predicted_s(seen, now_s)
        late = bool(seen.missing) and self._over_in_s is not None and self._over_in_s > SOON_S
        if late or self._falling(seen):
            self._stirred_s = now_s
            self._enter(State.CHURNING, now_s)
        elif self.state is not State.CHURNING or now_s - self._stirred_s >= CALM_S:
            self._enter(State.FILLING if seen.missing else State.STEADY, now_s)

    def steady_in_s(self, now_s: float) -> float | None:
        """Seconds until it is steady, as far as is known; None if nothing says so."""
        if self.state is State.STEADY:
            return 0.0
        calm_s = max(0.0, self._stirred_s + CALM_S - now_s) if self.state is State.CHURNING else 0.0
        return None if self._over_in_s is None else max(self._over_in_s, calm_s)

    def _enter(self, state: State, now_s: float) -> None:
        if state is not self.state:
            self.state, self.since_s = state, now_s

    def _count(self, seen: Seen, now_s: float) -> None:
        self._seen.append((now_s, seen.requests, seen.fallen))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - CALM_S:
            self._seen.popleft()
        requests = seen.requests - self._seen[0][1]
        self.fallen_share = (seen.fallen - self._seen[0][2]) / requests if requests else 0.0

    def _falling(self, seen: Seen) -> bool:
        return self.fallen_share > FALLEN_SHARE_MAX and seen.fallen - self._seen[0][2] >= FALLEN_MIN

    def _predicted_s(self, seen: Seen, now_s: float) -> float | None:
        """By whoever predicts it, else by the pace since most was missing."""
        most, most_s = self._most
        if seen.missing >= most or not seen.missing:
            self._most = most, most_s = seen.missing, now_s
        if not seen.missing:
            return 0.0
        if seen.over_in_s is not None:
            return seen.over_in_s
        done = most - seen.missing
        return seen.missing * (now_s - most_s) / done if done else None
