"""Whether a new revision answers worse than the old one, by what an instance of each counted.

It is little on purpose: failures by Fisher's exact test, and times by the histogram that instances keep. What a model
answers is judged by `warmpool rollout`, which sees the answers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

CHANCE_MAX = 0.001
"""Chance, at one look, that a revision which fails as seldom as the old one is called worse."""
QUANTILE = 0.9
"""Share of a method's requests that is compared by their time; the rest is too few to say much."""
STEPS_MIN = 2
"""Steps of the histogram by which a canary has to be slower; a step is a factor of 2 to 2.5."""

_FAILED = {"429", "500", "502", "503", "504"} | {
    "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN",
}  # fmt: skip
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class NoMetrics(ValueError):
    """The text is not what an instance's /metrics says."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one instance counted since it started."""

    answered: int = 0
    """Requests, whatever became of them."""
    failed: int = 0
    """Those that ended with 429, 500, 502, 503 or 504, or with what gRPC calls these."""
    seconds: Mapping[tuple[str, str], Mapping[float, int]] = field(default_factory=dict)
    """By model and method: how many requests took at most so many seconds."""


def read_metrics(text: str) -> Counted:
    """What an instance counted, by its text exposition. Raises NoMetrics."""
    statuses: Counter[str] = Counter()
    seconds: dict[tuple[str, str], dict[float, int]] = {}
    ours = False
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if line.startswith("#") or not sample:
            continue
        name, labels = sample["name"], dict(_LABEL.findall(sample["labels"] or ""))
        ours = ours or name == "warmpool_ready"
        try:
            if name == "warmpool_requests_total":
                statuses[labels["status"]] += int(float(sample["value"]))
            elif name == "warmpool_request_seconds_bucket":
                of_method = seconds.setdefault((labels["model"], labels["method"]), {})
                of_method[float(labels["le"])] = int(float(sample["value"]))
        except (KeyError, OverflowError, ValueError) as error:
            raise NoMetrics(f"{line[:200]!r} cannot be read: {error}") from None
    if not ours:
        raise NoMetrics("there is no warmpool_ready in it")
    failed = sum(count for status, count in statuses.items() if status in _FAILED)
    return Counted(statuses.total(), failed, seconds)


def worse(stable: Counted, canary: Counted, requests_min: int) -> str:
    """Why the canary is worse, "" if nothing shows it.

    Times are compared for methods of which both counted `requests_min` requests.
    """
    chance = chance_of_more(stable.failed, stable.answered, canary.failed, canary.answered)
    if chance < CHANCE_MAX:
        return (
            f"{canary.failed} of {canary.answered} requests failed, of the old revision's {stable.failed} of "
            f"{stable.answered} (chance of that if both were alike: {chance:.1e})"
        )
    for (model, method), counts in canary.seconds.items():
        before = stable.seconds.get((model, method), {})
        if min(_count(counts), _count(before)) < max(requests_min, 1) or list(counts) != list(before):
            continue
        steps = sorted(counts)
        now, then = _step(counts, steps), _step(before, steps)
        if now - then >= STEPS_MIN:
            return (
                f"{QUANTILE:.0%} of {model}:{method} take up to {steps[now]:g} s, with the old revision up to "
                f"{steps[then]:g} s"
            )
    return ""


def chance_of_more(failed: int, answered: int, canary_failed: int, canary_answered: int) -> float:
    """Chance that as many failures or more fall to the canary if failing does not depend on the revision.

    One-sided exact test of Fisher (1935): failures are drawn from all requests without putting back.
    """
    every, bad = answered + canary_answered, failed + canary_failed
    if not canary_failed or not every:
        return 1.0
    total = _log_choose(every, canary_answered)
    return math.fsum(
        math.exp(_log_choose(bad, k) + _log_choose(every - bad, canary_answered - k) - total)
        for k in range(canary_failed, min(bad, canary_answered) + 1)
        if canary_answered - k <= every - bad
    )


def _log_choose(of: int, some: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)


def _count(counts: Mapping[float, int]) -> int:
    return max(counts.values(), default=0)


def _step(counts: Mapping[float, int], steps: list[float]) -> int:
    """The first step that the quantile lies in."""
    return next(index for index, step in enumerate(steps) if counts[step] >= QUANTILE * _count(counts))
