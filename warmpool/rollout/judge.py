"""Whether a canary goes on, is promoted or is rolled back: pure, from the counts of two versions and a clock reading.

What is compared was given to one version or the other by the share alone, at the same time. So in every block of time
each error, and each place in the order of the times, falls on the canary as often as its share says, if it is no worse:
bursts, slow minutes and heavy tails hit both. A block is one bet (see `warmpool.rollout.evidence`), whatever is in it,
so what comes in clusters counts once. Only strong evidence of a difference that matters rolls back:

    errors       the canary has more than its share, and burns the error budget at once over a long and a short window
                 (Google, "The Site Reliability Workbook", chapter 5: multiwindow, multi-burn-rate alerts); what burns
                 is what it fails more often than stable does
    run times    later than stable's in the same bucket, by rank, beyond a slack
    times        the same of whole requests, whose waiting depends on the share too: a larger slack
    tail         more than its share of what takes twice stable's p99
    numerics     mirrored answers outside of the tolerance, or not finite, beyond a rate that is next to none
    memory       lanes grow in its batches and not in stable's, and by more than is allowed
    crashes      lanes die in its batches, more often than its share of them explains
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from warmpool.rollout.evidence import Evidence
from warmpool.rollout.tally import Counts

Action = Literal["continue", "promote", "rollback"]

BURNS = ((300, 60, 14.4), (600, 120, 6.0))  # long and short window in seconds, rate
WINDOW_S_MAX = 600
CRASH_S = 60
BLOCK_COUNT_MIN = 2  # of each version, before they are compared
TAIL_SAMPLES_MIN = 200
DOUBTFUL = 100.0  # evidence that does not roll back, and does not promote either


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a canary is promoted or rolled back.

    Attributes:
        bake_s: It is watched for so long at least before it is promoted.
        requests_min: And answers so many requests, or mirrored ones where it gets no others.
        compared_min: And so many of its answers were compared.
        error_budget: The share of requests that may fail.
        alarm_max: How likely one of the comparisons may come to a rollback by chance, over the whole rollout.
        errors_min: So many errors, and so many answers that differ, before any are held against it.
        run_slack_steps: What is no slower yet, in steps of the scale of `Times`: 2 are 19 %.
        request_slack_steps: The same of whole requests: 8 are twice the time.
        differing_max: The share of mirrored answers that may differ.
        not_finite_max: The share that may be no number where stable has one.
        growth_bytes_max: What lanes may grow by in its batches.
        crashes_min: So many crashes within a minute, before any are held against it.
        crash_alarm_max: How likely so many fall on the canary's batches by chance.
    """

    bake_s: float = 600.0
    requests_min: int = 200
    compared_min: int = 0
    error_budget: float = 0.001
    alarm_max: float = 1e-5
    errors_min: int = 3
    run_slack_steps: int = 2
    request_slack_steps: int = 8
    differing_max: float = 1e-3
    not_finite_max: float = 1e-4
    growth_bytes_max: int = 64 << 20
    crashes_min: int = 3
    crash_alarm_max: float = 0.01


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done, and why."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class _Second:
    second: int
    stable: Counts
    canary: Counts


@dataclass(slots=True)
class _Pair:
    stable: Counts = field(default_factory=Counts)
    canary: Counts = field(default_factory=Counts)

    def merge(self, stable: Counts, canary: Counts) -> None:
        self.stable.merge(stable)
        self.canary.merge(canary)

    @property
    def comparable(self) -> bool:
        """Whether there is enough of both; that depends on how much came, and not on what came of it."""
        pairs = ((self.stable.requests, self.canary.requests), (self.stable.batches, self.canary.batches))
        return any(min(pair) >= BLOCK_COUNT_MIN for pair in pairs)


class Judge:
    """The judge of one rollout."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.total = _Pair()
        self.evidence = {name: Evidence() for name in _ACCUSATIONS}
        self._block = _Pair()
        self._seconds: deque[_Second] = deque()
        self._first: int | None = None
        self._recent = _Pair()  # of which the next bounds of the tail are made
        self._tail_us: dict[str, float] = {}

    def add(self, second: int, stable: Counts, canary: Counts) -> None:
        """Take what happened to both versions in a second; they come in order, and those without anything may not."""
        if self._first is None and (canary.requests or canary.compared):
            self._first = second
        self._seconds.append(_Second(second, stable, canary))
        while self._seconds[0].second <= second - WINDOW_S_MAX:
            self._seconds.popleft()
        self._bet_on_numerics(canary)
        self.total.merge(stable, canary)
        self._block.merge(stable, canary)
        if self._block.comparable:
            self._bet_on(self._block.stable, self._block.canary)
            self._block = _Pair()

    def verdict(self, now_s: float) -> Verdict:
        """What is to be done by now, on the clock of the seconds."""
        if accusation := self._accusation(now_s):
            return Verdict("rollback", accusation)
        missing = self._missing(now_s)
        return Verdict("continue", missing) if missing else Verdict("promote", "it is no worse than stable")

    def figures(self, now_s: float) -> dict[str, float]:
        """What is known of both, by name."""
        canary, stable = self.total.canary, self.total.stable
        figures: dict[str, float] = {"watched_s": round(self._watched_s(now_s), 1)}
        for name, counts in (("stable", stable), ("canary", canary)):
            figures |= {
                f"{name}_requests": counts.requests,
                f"{name}_errors": counts.errors,
                f"{name}_crashes": counts.crashes,
                f"{name}_grown_bytes": counts.grown_bytes,
            }
            for method, times in counts.request_times.items():
                figures[f"{name}_{method}_p50_us"] = round(times.quantile_us(0.5))
                figures[f"{name}_{method}_p99_us"] = round(times.quantile_us(0.99))
        figures |= {"compared": canary.compared, "differing": canary.differing, "not_finite": canary.not_finite}
        figures |= {f"burn_{long_s}_s": round(self._burn(now_s, long_s), 2) for long_s, _, _ in BURNS}
        return figures | {f"evidence_{name}": float(f"{bets.value:.3g}") for name, bets in self.evidence.items()}

    # What is bet on

    def _bet_on_numerics(self, canary: Counts) -> None:
        for name, count, allowed in (
            ("differing", canary.differing, self.policy.differing_max),
            ("not_finite", canary.not_finite, self.policy.not_finite_max),
        ):
            if canary.compared:
                self.evidence[name].add(count / canary.compared - allowed, allowed)

    def _bet_on(self, stable: Counts, canary: Counts) -> None:
        requests = canary.requests, stable.requests
        self._bet_on_share("errors", (canary.errors, stable.errors), requests)
        self._bet_on_ranks("run_times", stable, canary, self.policy.run_slack_steps)
        self._bet_on_ranks("request_times", stable, canary, self.policy.request_slack_steps)
        self._bet_on_share("tail", (self._in_tail(canary), self._in_tail(stable)), requests)
        self._bet_on_growth(stable, canary)
        self._learn_tail(stable, canary)

    def _bet_on_share(self, name: str, counts: tuple[int, int], of: tuple[int, int]) -> None:
        """Bet that the canary has more of what happened than its share of all; both are (the canary's, stable's)."""
        if sum(counts) and of[0]:
            share = of[0] / sum(of)
            self.evidence[name].add(counts[0] / sum(counts) - share, share)

    def _bet_on_ranks(self, name: str, stable: Counts, canary: Counts, slack_steps: int) -> None:
        """Bet that the canary is later, each kind of thing compared with its own, by as many as the canary has."""
        mine, theirs = getattr(canary, name), getattr(stable, name)
        weights = {kind: times.total for kind, times in mine.items() if kind in theirs}
        if weights:
            later = (mine[kind].later_than(theirs[kind], slack_steps) * weight for kind, weight in weights.items())
            self.evidence[name].add(max(sum(later) / sum(weights.values()), -1.0), 1.0)

    def _bet_on_growth(self, stable: Counts, canary: Counts) -> None:
        if stable.batches and canary.batches:
            more = canary.grown_bytes / canary.batches - stable.grown_bytes / stable.batches
            self.evidence["memory"].add(float((more > 0) - (more < 0)), 1.0)

    def _in_tail(self, counts: Counts) -> int:
        bounds = self._tail_us
        return sum(times.above(bounds[name]) for name, times in counts.request_times.items() if name in bounds)

    def _learn_tail(self, stable: Counts, canary: Counts) -> None:
        """What counts as the tail from now on; it is known before that to which it is applied."""
        self._recent.merge(stable, canary)
        if self._recent.stable.requests >= TAIL_SAMPLES_MIN:
            times = self._recent.stable.request_times
            self._tail_us = {method: 2 * one.quantile_us(0.99) for method, one in times.items()}
            self._recent = _Pair()

    # What is concluded

    def _accusation(self, now_s: float) -> str:
        """What the canary is found guilty of, "" for nothing."""
        if crashed := self._crash_loop(now_s):
            return crashed
        convinced = 1 / self.policy.alarm_max
        for name, accusation in _ACCUSATIONS.items():
            if self.evidence[name].value >= convinced and self._matters(name, now_s):
                return accusation
        return ""

    def _matters(self, name: str, now_s: float) -> bool:
        """Whether a difference, however certain, is one to act on; what is timed has its slack already."""
        canary, policy = self.total.canary, self.policy
        match name:
            case "errors":
                return canary.errors >= policy.errors_min and self._burns(now_s)
            case "differing" | "not_finite":
                return int(getattr(canary, name)) >= policy.errors_min
            case "memory":
                return canary.grown_bytes >= policy.growth_bytes_max
        return True

    def _missing(self, now_s: float) -> str:
        """What a promotion still waits for, "" if for nothing."""
        policy, canary = self.policy, self.total.canary
        doubts = [name for name, evidence in self.evidence.items() if evidence.value >= DOUBTFUL]
        answered = canary.requests or canary.compared
        if self._watched_s(now_s) < policy.bake_s:
            return f"watched for {self._watched_s(now_s):.0f} s of {policy.bake_s:g}"
        if answered < policy.requests_min:
            return f"{answered} requests of {policy.requests_min}"
        if canary.compared < policy.compared_min:
            return f"{canary.compared} comparisons of {policy.compared_min}"
        return f"in doubt: {', '.join(doubts)}" if doubts else ""

    def _watched_s(self, now_s: float) -> float:
        return 0.0 if self._first is None else max(0.0, now_s - self._first)

    def _crash_loop(self, now_s: float) -> str:
        recent = [one for one in self._seconds if one.second > now_s - CRASH_S]
        mine = sum(one.canary.crashes for one in recent)
        if mine < self.policy.crashes_min:
            return ""
        count = mine + sum(one.stable.crashes for one in recent)
        batches = sum(one.canary.batches for one in recent)
        share = batches / max(1, batches + sum(one.stable.batches for one in recent))
        if binomial_tail(mine, count, share) > self.policy.crash_alarm_max:
            return ""
        return f"lanes crash: {mine} of {count} times within {CRASH_S} s in the canary's batches"

    def _burns(self, now_s: float) -> bool:
        return any(min(self._burn(now_s, long), self._burn(now_s, short)) >= rate for long, short, rate in BURNS)

    def _burn(self, now_s: float, window_s: int) -> float:
        """How many times faster than it may the canary uses up its error budget, beyond what stable does."""
        recent = [one for one in self._seconds if one.second > now_s - window_s]
        canary, stable = [one.canary for one in recent], [one.stable for one in recent]
        return max(0.0, (_error_rate(canary) - _error_rate(stable)) / self.policy.error_budget)


def _error_rate(counts: list[Counts]) -> float:
    requests = sum(one.requests for one in counts)
    return sum(one.errors for one in counts) / requests if requests else 0.0


def binomial_tail(least: int, count: int, share: float) -> float:
    """How likely at least so many of a count are, each with the probability `share`."""
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(least, count + 1))


_ACCUSATIONS = {
    "errors": "it fails more often than stable",
    "not_finite": "it answers with NaN or infinity where stable has numbers",
    "differing": "its answers differ from stable's by more than the tolerance",
    "run_times": "its runs take longer than stable's",
    "request_times": "its requests take longer than stable's",
    "tail": "more of its requests take far longer than stable's",
    "memory": "lanes grow in its batches",
}
