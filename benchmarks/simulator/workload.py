"""Workloads: arrivals as requests for one method, at a wanted load."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.simulator.arrivals import Arrivals
from benchmarks.simulator.cost_table import CostTable
from benchmarks.simulator.offline import best_offline
from benchmarks.simulator.simulation import WAY_US, Method, Request
from warmpool.selection import Candidate


def capacity(arrivals: Arrivals, candidates: Sequence[Candidate], table: CostTable) -> float:
    """Requests a second that the best offline batching of all of them does: load 1."""
    total_us = best_offline(arrivals.lengths, candidates, table.batch, table.length, WAY_US).total_us
    return len(arrivals) / (total_us * 1e-6)


def at_load(arrivals: Arrivals, load: float, per_s: float) -> Arrivals:
    """Arrivals at `load` times so many a second on average."""
    return arrivals.faster(load * per_s * arrivals.span_s / len(arrivals))


def requests_of(arrivals: Arrivals, method: Method, length: str, deadline_s: float) -> list[Request]:
    """One row each."""
    assert method.batch is not None
    return [
        Request(
            method,
            {method.batch: 1, length: size} if length else {method.batch: 1},
            1,
            at_s,
            at_s + deadline_s,
        )
        for at_s, size in zip(arrivals.at_s, arrivals.lengths, strict=True)
    ]
