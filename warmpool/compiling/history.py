"""What became of missing executables: the last ones that were made or failed, and those that wait for another try.

A failure concerns one key, so another program, kind of machine or option is another chance. What failed is tried again
less and less often: what the store says failed to compile (`cache.failures`) is not compiled then, unless somebody
forgot that, but it may have been made elsewhere. What failed for the sake of the moment, as on a full disk or while the
store is away, is tried again soon, and never seldom: nothing else would notice that the moment is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from warmpool.backoff import backoff_s
from warmpool.compiling.gaps import Gap

KEPT_MAX = 32
RETRY_FIRST_S = 60.0
RETRY_S_MAX = 3600.0
PASSING_FIRST_S, PASSING_S_MAX = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a gap: "made" or "failed" (with a reason); after how long, and when (epoch)."""

    gap: Gap
    outcome: str
    seconds: float
    when_s: float
    reason: str = ""

    def describe(self) -> dict[str, Any]:
        """As the status shows it."""
        return {
            "title": self.gap.title,
            "version": self.gap.version,
            "key": self.gap.key,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 3),
            "when_s": round(self.when_s, 3),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a gap is not closed, how often that was tried, and when it is again (monotonic).

    `passing`: it is a failure of the moment. Tries are counted since the last failure of the other kind.
    `tried`: it failed, and does not only rest.
    """

    gap: Gap
    reason: str
    tries: int
    again_s: float
    passing: bool
    tried: bool


class History:
    """Of one instance.

    Attributes:
        outcomes: The last ones, the newest last.
        failures: By key, of what is still missing.
        made: How many were made ever.
        failed: How many failures there were ever.
    """

    def __init__(self) -> None:
        self.outcomes: deque[Outcome] = deque(maxlen=KEPT_MAX)
        self.failures: dict[str, Failure] = {}
        self.made = 0
        self.failed = 0

    def close(self, gap: Gap, seconds: float, when_s: float) -> None:
        """A gap is closed."""
        self.failures.pop(gap.key, None)
        self.made += 1
        self.outcomes.append(Outcome(gap, "made", seconds, when_s))

    def fail(
        self, gap: Gap, reason: str, seconds: float, when_s: float, now_s: float, *, passing: bool = False
    ) -> None:
        """A gap cannot be closed now; `passing`: for the sake of the moment."""
        self.rest(gap, reason, now_s, passing=passing, tried=True)
        self.failed += 1
        self.outcomes.append(Outcome(gap, "failed", seconds, when_s, reason))

    def rest(self, gap: Gap, reason: str, now_s: float, *, passing: bool = False, tried: bool = False) -> None:
        """Do not try a gap for a while; `tried`: it failed."""
        before = self.failures.get(gap.key)
        tries = before.tries + 1 if before and before.passing is passing else 1
        first_s, longest_s = (PASSING_FIRST_S, PASSING_S_MAX) if passing else (RETRY_FIRST_S, RETRY_S_MAX)
        again_s = now_s + backoff_s(tries, first_s, longest_s)
        self.failures[gap.key] = Failure(gap, reason, tries, again_s, passing, tried)

    def may_try(self, gap: Gap, now_s: float) -> bool:
        """Whether it is time for another try of a gap."""
        failure = self.failures.get(gap.key)
        return failure is None or now_s >= failure.again_s

    def why_not(self, model: str, version: str) -> str:
        """Why the primary lane's minimum set of a version cannot be made, "" if nothing of it has failed for good."""
        for one in self.failures.values():
            own = (one.gap.model, one.gap.version) == (model, version) and one.gap.minimum and not one.gap.ladder
            if own and one.tried and not one.passing:
                return f"{one.gap.title}: {one.reason}"
        return ""

    def keep(self, keys: Collection[str]) -> None:
        """Forget failures of what is not missing any more: only these keys are."""
        for key in self.failures.keys() - keys:
            del self.failures[key]

    def describe(self) -> dict[str, Any]:
        """As the status shows it."""
        return {
            "made": self.made,
            "failed": self.failed,
            "history": [one.describe() for one in self.outcomes],
            "failures": {f"{one.gap.title} of {one.gap.version}": one.reason for one in self.failures.values()},
        }
