"""The queue that runs live: `LaneScheduler` and `CostModel` themselves, called as `warmpool.batcher` calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from benchmarks.simulator.simulation import Method, Request, Run
from warmpool.scheduling.cost_model import CostModel
from warmpool.scheduling.fair_share import FairShare
from warmpool.scheduling.scheduler import LaneScheduler
from warmpool.scheduling.work import Group, Policy
from warmpool.selection import Candidate


class LiveQueue:
    """One lane's queue.

    Args:
        warm: What is warm, by method.
        policy: How the queue is run; what the live default is, where it is left out.
        rows_max: Rows that may wait.
        weights: Of the models.
    """

    def __init__(
        self,
        warm: Mapping[Method, Sequence[Candidate]],
        policy: Policy | None = None,
        rows_max: int = 4096,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.costs = CostModel()
        self.scheduler: LaneScheduler[Request] = LaneScheduler(self.costs, FairShare(weights), policy)
        for method, candidates in warm.items():
            self.scheduler.set_warm(method, candidates)
        self._rows_max = rows_max
        self._free_s = 0.0
        self._group: Group[Request] | None = None

    def arrive(self, request: Request, now_s: float) -> bool:
        if self.scheduler.rows + request.rows > self._rows_max:
            return False
        return self.scheduler.offer([request], now_s, self._free_s) is None

    def start(self, now_s: float) -> tuple[Run | None, Sequence[Request]]:
        dropped = self.scheduler.overdue(now_s)
        group = self._group = self.scheduler.next(now_s)
        if group is None:
            return None, dropped
        self._free_s = now_s + group.bound_us * 1e-6
        return Run(group.items, group.candidate), dropped

    def wake_s(self, now_s: float) -> float:
        return max(self.scheduler.ready_s, now_s + 1e-6) if len(self.scheduler) else inf

    def ended(self, run: Run, took_us: float) -> None:
        group = self._group
        assert group is not None
        self._free_s = 0.0
        method = run.requests[0].method
        self.costs.observe(method, run.candidate, took_us)
        self.scheduler.ran(method, group.cost_us, took_us)
