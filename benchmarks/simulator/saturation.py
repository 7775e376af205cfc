"""The most that a queue gets out of its executables: clients that send the next request when they have their answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import percentile
from benchmarks.simulator.cost_table import CostTable
from benchmarks.simulator.live_queue import LiveQueue
from benchmarks.simulator.offline import best_offline
from benchmarks.simulator.simulation import WAY_US, Fate, Lane, Method, Outcome, Request, simulate
from warmpool.selection import Candidate

DEADLINE_S = 30.0  # as a request has that brings none


@dataclass(frozen=True, slots=True)
class Saturated:
    """Requests a second, the 99th percentile of their latencies, and both over the best offline batching's rate."""

    clients: int
    per_s: float
    p99_s: float
    over_best: float
    outcome: Outcome


def saturate(
    lengths: Sequence[int], candidates: Sequence[Candidate], table: CostTable, clients: int, seed: int
) -> Saturated:
    """Play so many clients, and the best offline batches of what they send on a lane with the same noise."""
    method = Method(table.model, table.batch)
    following = iter(lengths)

    def request(now_s: float) -> Request | None:
        size = next(following, None)
        if size is None:
            return None
        need = {table.batch: 1, table.length: size} if table.length else {table.batch: 1}
        return Request(method, need, 1, now_s, now_s + DEADLINE_S)

    first = [one for one in (request(0.0) for _ in range(clients)) if one]
    outcome = simulate(LiveQueue({method: candidates}), Lane(table.noise, seed), first, lambda _, now_s: request(now_s))
    assert outcome.count(Fate.ANSWERED) == len(lengths), outcome
    per_s = len(lengths) / outcome.end_s
    p99_s = percentile(outcome.latencies_s, 0.99)
    return Saturated(clients, per_s, p99_s, per_s / best_per_s(lengths, candidates, table, seed), outcome)


def best_per_s(lengths: Sequence[int], candidates: Sequence[Candidate], table: CostTable, seed: int) -> float:
    """Requests a second of the best offline batches, run one after the other."""
    batches = best_offline(lengths, candidates, table.batch, table.length, WAY_US).batches
    lane = Lane(table.noise, seed)
    return len(lengths) / (sum(lane.took_us(batch.candidate) for batch in batches) * 1e-6)


def grid(rows: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """A plan of all combinations."""
    return list(itertools.product(rows, lengths))
