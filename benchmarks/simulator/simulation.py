"""The virtual clock: requests arrive, a lane runs what a queue gives it, and every request gets one end.

The clock jumps from event to event, so that an hour takes a second. What decides is the queue's own code: the same
object that runs live, or a baseline. The lane takes what was measured, times a seeded noise, so that predictions are as
wrong as they are live.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Protocol

from benchmarks.simulator.cost_table import NO_NOISE, Noise
from warmpool.selection import Candidate

WAY_US = 300.0  # from the front to the lane and back, beside the run: handing over, running nothing, returning


class Fate(Enum):
    """How a request ends. `LATE` was computed for nothing."""

    ANSWERED = "answered"
    LATE = "late"
    REFUSED = "refused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """What `warmpool.scheduling` wants to know of a method."""

    model: str
    batch: str | None
    mergeable: bool = True


@dataclass(slots=True, eq=False)
class Request:
    """A request as scheduling sees it, and its end. Times in seconds of the virtual clock."""

    method: Method
    need: dict[str, int]
    rows: int
    arrived_s: float
    deadline_s: float
    priority: int = 0
    runs: int = 0
    fate: Fate | None = None
    ended_s: float = inf

    def end(self, fate: Fate, now_s: float) -> None:
        """Its one end."""
        assert self.fate is None, (self, fate)
        self.fate, self.ended_s = fate, now_s


@dataclass(frozen=True, slots=True)
class Run:
    """Requests that run together."""

    requests: Sequence[Request]
    candidate: Candidate


class Queue(Protocol):
    """What decides what runs when."""

    def arrive(self, request: Request, now_s: float) -> bool:
        """Take a request in; False if it is refused."""
        ...

    def start(self, now_s: float) -> tuple[Run | None, Sequence[Request]]:
        """What an idle lane runs now, and what is dropped because it would be late."""
        ...

    def wake_s(self, now_s: float) -> float:
        """When to ask again after `start` gave nothing to run; infinite where only an arrival changes that."""
        ...

    def ended(self, run: Run, took_us: float) -> None:
        """What was started is over."""
        ...


class Lane:
    """A lane that takes for each run what was measured, times a noise, and the way to it and back."""

    def __init__(self, noise: Noise = NO_NOISE, seed: int = 0, way_us: float = WAY_US) -> None:
        self._noise = noise
        self._generator = random.Random(seed)
        self._way_us = way_us

    def took_us(self, candidate: Candidate) -> float:
        """The time of one run."""
        return self._way_us + candidate.cost_us * self._noise.factor(self._generator)


@dataclass(slots=True)
class Outcome:
    """All requests with their ends, what ran, and how fast the clock went. Times in seconds."""

    requests: list[Request] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    busy_s: float = 0.0
    end_s: float = 0.0
    wall_s: float = 0.0

    def count(self, fate: Fate) -> int:
        return sum(request.fate is fate for request in self.requests)

    @property
    def counts(self) -> dict[str, int]:
        """How many ended in which way."""
        return {fate.value: self.count(fate) for fate in Fate}

    @property
    def share(self) -> float:
        """The share of all requests that were answered in time."""
        return self.count(Fate.ANSWERED) / len(self.requests)

    @property
    def goodput(self) -> float:
        """Answers in time per second, from the first arrival to the last end."""
        return self.count(Fate.ANSWERED) / self.end_s

    @property
    def latencies_s(self) -> list[float]:
        """Of what was answered in time."""
        return [one.ended_s - one.arrived_s for one in self.requests if one.fate is Fate.ANSWERED]

    @property
    def faster(self) -> float:
        """Virtual seconds a second."""
        return self.end_s / self.wall_s


Following = Callable[[Request, float], Request | None]


def simulate(queue: Queue, lane: Lane, arriving: Iterable[Request], following: Following | None = None) -> Outcome:
    """Play all that arrives until nothing waits or runs any more.

    Args:
        queue: What decides.
        lane: What runs.
        arriving: What comes, in any order.
        following: Called with each request that ended, and when; what a client sends then, at that time or later.
    """
    simulation = _Simulation(queue, lane, following)
    for request in arriving:
        simulation.expect(request)
    begin_s = time.perf_counter()
    simulation.play()
    simulation.outcome.wall_s = time.perf_counter() - begin_s
    return simulation.outcome


class _Simulation:
    def __init__(self, queue: Queue, lane: Lane, following: Following | None) -> None:
        self.outcome = Outcome()
        self._queue = queue
        self._lane = lane
        self._following = following
        self._coming: list[tuple[float, int, Request]] = []
        self._running: Run | None = None
        self._took_us = 0.0
        self._ends_s = inf

    def expect(self, request: Request) -> None:
        heapq.heappush(self._coming, (request.arrived_s, len(self.outcome.requests), request))
        self.outcome.requests.append(request)

    def play(self) -> None:
        wake_s = inf
        while True:
            now_s = min(self._ends_s, wake_s, self._coming[0][0] if self._coming else inf)
            if now_s == inf:
                break
            if self._ends_s <= now_s:
                self._finish(now_s)
            while self._coming and self._coming[0][0] <= now_s:
                request = heapq.heappop(self._coming)[2]
                if not self._queue.arrive(request, now_s):
                    self._end(request, Fate.REFUSED, now_s)
            wake_s = inf if self._running else self._start(now_s)
        unended = [request for request in self.outcome.requests if request.fate is None]
        assert not unended, f"{len(unended)} requests have no end, the first: {unended[0]}"

    def _start(self, now_s: float) -> float:
        """Start what is next; when to ask again if that is nothing."""
        run, dropped = self._queue.start(now_s)
        for request in dropped:
            self._end(request, Fate.DROPPED, now_s)
        if run is None:
            wake_s = self._queue.wake_s(now_s)
            assert wake_s > now_s, (wake_s, now_s)
            return wake_s
        self._running = run
        self._took_us = self._lane.took_us(run.candidate)
        self._ends_s = now_s + self._took_us * 1e-6
        self.outcome.runs.append(run)
        self.outcome.busy_s += self._took_us * 1e-6
        return inf

    def _finish(self, now_s: float) -> None:
        run, self._running, self._ends_s = self._running, None, inf
        assert run is not None
        self._queue.ended(run, self._took_us)
        for request in run.requests:
            self._end(request, Fate.ANSWERED if now_s <= request.deadline_s else Fate.LATE, now_s)

    def _end(self, request: Request, fate: Fate, now_s: float) -> None:
        request.end(fate, now_s)
        self.outcome.end_s = now_s
        if self._following and (another := self._following(request, now_s)):
            self.expect(another)
