"""What happened to the versions of one model, second by second, until a judge takes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from warmpool.rollout.times import Times

SECONDS_MAX = 600  # older ones are dropped where no judge comes for them
STRATA_MAX = 512  # kinds of runs that are told apart in a second


@dataclass(slots=True)
class Counts:
    """What happened to one version in some seconds.

    Attributes:
        requests: Those that were answered, well or not, and were given this version by the share.
        errors: Of these, the ones that the service failed (5xx).
        batches: That ran, or were to.
        crashes: Of these, the ones in which the lane died.
        compared: Mirrored requests whose answers were compared.
        differing: Of these, the ones that were outside of the tolerance.
        not_finite: And the ones with NaN or an infinity where stable had a number.
        grown_bytes: What lanes grew by in its batches; less than 0 if they shrank.
        request_times: What a request took, from being accepted to its answer, by method.
        run_times: What a run took in its lane, by method and bucket.
    """

    requests: int = 0
    errors: int = 0
    batches: int = 0
    crashes: int = 0
    compared: int = 0
    differing: int = 0
    not_finite: int = 0
    grown_bytes: int = 0
    request_times: dict[str, Times] = field(default_factory=dict)
    run_times: dict[str, Times] = field(default_factory=dict)

    def merge(self, other: Counts) -> None:
        """Add all that the other has."""
        self.requests += other.requests
        self.errors += other.errors
        self.batches += other.batches
        self.crashes += other.crashes
        self.compared += other.compared
        self.differing += other.differing
        self.not_finite += other.not_finite
        self.grown_bytes += other.grown_bytes
        for mine, theirs in ((self.request_times, other.request_times), (self.run_times, other.run_times)):
            for kind, times in theirs.items():
                _times_of(mine, kind).merge(times)

    def request(self, method: str, took_us: float, *, failed: bool) -> None:
        """A request that the share gave this version has its answer. What failed is no time to compare."""
        self.requests += 1
        self.errors += failed
        if not failed:
            _add(self.request_times, method, took_us)

    def ran(self, method: str, bucket: str, took_us: float) -> None:
        """A batch ran."""
        self.batches += 1
        _add(self.run_times, f"{method} {bucket}", took_us)


def _add(times: dict[str, Times], kind: str, took_us: float) -> None:
    if kind in times or len(times) < STRATA_MAX:
        _times_of(times, kind).add(took_us)


def _times_of(times: dict[str, Times], kind: str) -> Times:
    found = times.get(kind)
    if found is None:
        found = times[kind] = Times()
    return found


class Tally:
    """The counts of the versions of one model.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: dict[int, dict[str, Counts]] = {}

    def of(self, version: str) -> Counts:
        """What is counted for a version in this second."""
        second = math.floor(self._clock())
        if second not in self._seconds:
            self._seconds[second] = {}
            while len(self._seconds) > SECONDS_MAX:
                del self._seconds[min(self._seconds)]
        return self._seconds[second].setdefault(version, Counts())

    def take(self) -> Iterator[tuple[int, dict[str, Counts]]]:
        """The seconds that are over, each once, in their order, with the counts of the versions that had any."""
        now = math.floor(self._clock())
        for second in sorted(second for second in self._seconds if second < now):
            yield second, self._seconds.pop(second)
