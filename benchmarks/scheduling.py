"""What deciding costs: wall time of the scheduler's own code for each request, with 32 waiting.

A lane that is always busy: as soon as a batch is taken, as many requests come in as left, or, in overload, twice as
many, of which about half is refused. Offering them, dropping what would be late, choosing the next batch and learning
from what it took are all counted, nothing else is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Figure, Report, Target
from benchmarks.simulate import POWERS
from benchmarks.simulator.cost_table import STORED, CostTable, read_costs
from benchmarks.simulator.generator import generate
from benchmarks.simulator.simulation import Lane, Method, Request
from benchmarks.stores import Folders
from warmpool.scheduling.cost_model import CostModel
from warmpool.scheduling.scheduler import LaneScheduler

WAITING = 32
REQUESTS = 3000  # a round
WARM_UP = 500
US_MAX = 50.0


@dataclass(frozen=True, slots=True)
class Case:
    """What comes: of how many models, with how much time, and how many for each that ran.

    `within_s` has deadlines to draw from: 30 s where nobody is in a hurry; what is near the time that the queue takes
    makes promises that have to be checked one by one.
    """

    title: str
    models: int
    within_s: Sequence[float]
    offered: int = 1


CASES = (
    Case("one model, no hurry", 1, (30.0,)),
    Case("one model, deadlines from 1 to 3 s", 1, (1.0, 1.5, 2.0, 3.0)),
    Case("three models, deadlines from 2 to 30 s", 3, (2.0, 5.0, 30.0)),
    Case("one model, overload, deadlines from 0.2 to 0.4 s", 1, (0.2, 0.3, 0.4), offered=2),
)


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:  # noqa: ARG001  # as all benchmarks
    """Measure."""
    table = read_costs(STORED / "embed.json")
    costs_us: dict[str, list[float]] = {case.title: [] for case in CASES}
    for number in range(1, rounds + 1):
        for case in CASES:
            costs_us[case.title].append(request_us(table, case, number))
        shown = ", ".join(f"{values[-1]:.0f} us" for values in costs_us.values())
        say(f"scheduling {number}/{rounds}: {shown} a request")
    figures = [
        Figure(f"scheduling, {WAITING} waiting: {title}", "us", tuple(values), Target("at most", US_MAX))
        for title, values in costs_us.items()
    ]
    raw: dict[str, Any] = {"requests": REQUESTS, "us": costs_us}
    return Report("scheduling cost of a request", figures, raw)


def request_us(table: CostTable, case: Case, seed: int) -> float:
    """Microseconds of scheduling for each request that was offered."""
    queue = _Queue(table, case, seed)
    queue.offer(WAITING)
    queue.serve(WARM_UP)
    queue.spent_ns = queue.offered = 0
    queue.serve(REQUESTS)
    return queue.spent_ns / 1e3 / queue.offered


class _Queue:
    """A scheduler whose queue is kept full, and the time that is spent in it."""

    def __init__(self, table: CostTable, case: Case, seed: int) -> None:
        self.spent_ns = 0
        self.offered = 0
        self._costs = CostModel()
        self._scheduler: LaneScheduler[Request] = LaneScheduler(self._costs)
        self._methods = [Method(f"{table.model} {number}", table.batch) for number in range(case.models)]
        for method in self._methods:
            self._scheduler.set_warm(method, table.candidates(POWERS))
        self._lane = Lane(table.noise, seed)
        self._generator = random.Random(seed)
        self._lengths = generate("bursty", REQUESTS, seed).within(table.lengths[-1]).lengths
        self._case = case
        self._table = table
        self._now_s = 0.0
        self._free_s = 0.0

    def offer(self, count: int) -> None:
        """Offer so many requests."""
        for _ in range(count):
            request = self._request()
            begin_ns = time.perf_counter_ns()
            self._scheduler.offer([request], self._now_s, self._free_s)
            self.spent_ns += time.perf_counter_ns() - begin_ns
        self.offered += count

    def serve(self, count: int) -> None:
        """Run batches until so many requests ran."""
        while count > 0:
            begin_ns = time.perf_counter_ns()
            late = self._scheduler.overdue(self._now_s)
            group = self._scheduler.next(self._now_s)
            self.spent_ns += time.perf_counter_ns() - begin_ns
            if group is None:
                self.offer(1)
                continue
            count -= len(group.items)
            self._free_s = self._now_s + group.bound_us * 1e-6
            self.offer((len(group.items) + len(late)) * self._case.offered)
            took_us = self._lane.took_us(group.candidate)
            self._now_s += took_us * 1e-6
            begin_ns = time.perf_counter_ns()
            method = group.items[0].method
            self._costs.observe(method, group.candidate, took_us)
            self._scheduler.ran(method, group.cost_us, took_us)
            self.spent_ns += time.perf_counter_ns() - begin_ns

    def _request(self) -> Request:
        need = {self._table.batch: 1, self._table.length: self._generator.choice(self._lengths)}
        within_s = self._generator.choice(self._case.within_s)
        method = self._generator.choice(self._methods)
        return Request(method, need, 1, self._now_s, self._now_s + within_s)
