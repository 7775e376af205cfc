"""What paced clients saw while something was so, and what they saw in several such phases together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.figures import percentile

SLOWEST_SHARE = 0.02  # of a phase's latencies, that are kept: enough for p99.9 of twenty equal phases together


@dataclass(frozen=True, slots=True)
class Phase:
    """Times in seconds.

    Attributes:
        late_p999_s: Of how late requests were sent, which is in the latencies.
        slowest_s: The `SLOWEST_SHARE` of the latencies that are longest, the longest first.
        steps: How many requests were answered by which step of the fallback ladder.
    """

    seconds: float
    requests: int
    p50_s: float
    p99_s: float
    p999_s: float
    late_p999_s: float
    slowest_s: tuple[float, ...]
    steps: dict[str, int]

    @classmethod
    def of(cls, done: Sequence[Mapping[str, Any]], steps: dict[str, int]) -> Self:
        """Of what `benchmarks.paced_client` told of each request."""
        latencies_s = [one["answered_s"] - one["sent_s"] for one in done]
        return cls(
            seconds=max(one["answered_s"] for one in done) - min(one["sent_s"] for one in done),
            requests=len(done),
            p50_s=percentile(latencies_s, 0.5),
            p99_s=percentile(latencies_s, 0.99),
            p999_s=percentile(latencies_s, 0.999),
            late_p999_s=percentile((one["late_s"] for one in done), 0.999),
            slowest_s=tuple(sorted(latencies_s, reverse=True)[: math.ceil(SLOWEST_SHARE * len(done))]),
            steps=steps,
        )


def p999_of_all_s(phases: Sequence[Phase]) -> float:
    """p99.9 of the requests of several phases together. Raises ValueError where too few of the slowest were kept."""
    count = sum(phase.requests for phase in phases)
    slower = count - math.ceil(0.999 * count)
    if slower >= min(len(phase.slowest_s) for phase in phases):
        raise ValueError(f"{len(phases)} phases are too many: all of the slowest may be of one, which keeps fewer")
    return sorted((one for phase in phases for one in phase.slowest_s), reverse=True)[slower]
