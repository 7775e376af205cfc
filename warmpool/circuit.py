"""Whether a lane that keeps failing is started again, and when: a circuit breaker. Decisions only, time as an argument.

Closed, a lane is started again at once, and with small growing delays where it did not even become warm. So many
failures within a window open it: the lane stays down, and is tried again after a delay that doubles with each trial
that fails. A trial is a start like any other, and what it serves is served; only once it has stayed warm and answered
for a while is the circuit closed, and everything before forgotten. (M. Nygard, Release It!, 2007, "Circuit Breaker";
here the trial is a process and not a call.)
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from warmpool.backoff import backoff_s

FAILURES_MAX = 5
WINDOW_S = 30.0
RESTART_S, RESTART_S_MAX = 0.1, 5.0
TRIAL_S, TRIAL_S_MAX = 1.0, 60.0
PROVEN_S = 10.0


class Circuit:
    """The circuit of one lane. Times are seconds of one monotonic clock.

    Attributes:
        state: "closed", "open" or "half-open".
        reason: What opened it, "" while it is closed.
        next_try_s: When a lane whose circuit is open is started again.
    """

    def __init__(self) -> None:
        self.state = "closed"
        self.reason = ""
        self.next_try_s = -math.inf
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)
        self._early = 0  # failures in a row before it was warm
        self._trials = 0  # that failed
        self._well_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<Circuit {self.state} {self.reason!r}>"

    def failed(self, why: str, now_s: float) -> float:
        """The lane's process failed; after how many seconds to start the next."""
        self._failures.append(now_s)
        delay_s = backoff_s(self._early, RESTART_S, RESTART_S_MAX)
        self._early += 1
        self._well_since_s = None
        often = len(self._failures) == FAILURES_MAX and now_s - self._failures[0] <= WINDOW_S
        if self.state == "closed" and not often:
            return delay_s
        self._trials += 1
        self.state = "open"
        self.reason = f"it failed {FAILURES_MAX} times in {WINDOW_S:g} s, the last time: {why}"
        if self._trials > 1:
            self.reason = f"{self._trials - 1} trials failed, the last one: {why}"
        delay_s = backoff_s(self._trials, TRIAL_S, TRIAL_S_MAX)
        self.next_try_s = now_s + delay_s
        return delay_s

    def tried(self) -> None:
        """The lane is started."""
        if self.state == "open":
            self.state = "half-open"

    def warmed(self) -> None:
        """The lane has tried everything that it is to hold."""
        self._early = 0

    def answered(self, now_s: float) -> None:
        """The lane is warm, and answered."""
        if self._well_since_s is None:
            self._well_since_s = now_s
        if self.state == "half-open" and now_s - self._well_since_s >= PROVEN_S:
            self.state, self.reason, self._trials = "closed", "", 0
            self._failures.clear()

    def why_down(self, now_s: float) -> str:
        """Why the lane stays down, and for how long, "" if it does not."""
        if self.state != "open":
            return ""
        return f"{self.reason}; it is tried again in {max(0.0, self.next_try_s - now_s):.0f} s"

    def describe(self, now_s: float) -> dict[str, Any]:
        """For a status document; `next_try_in_s` is None unless it is open."""
        in_s = round(max(0.0, self.next_try_s - now_s), 1) if self.state == "open" else None
        return {"state": self.state, "reason": self.reason, "next_try_in_s": in_s}
