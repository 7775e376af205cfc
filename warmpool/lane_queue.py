"""What waits for one lane, scheduled by `warmpool.scheduling`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from warmpool.batches import Batch, Part
from warmpool.catalog import ServedMethod
from warmpool.fallback import Step
from warmpool.lanes import LaneProxy
from warmpool.scheduling.fair_share import FairShare
from warmpool.scheduling.scheduler import LaneScheduler
from warmpool.scheduling.work import Policy, Refusal
from warmpool.selection import Candidate, Sizes, covers


class LaneQueue:
    """A lane and what waits for it.

    Args:
        lane: Runs it.
        policy: How the queue is run.
        weights: The models' shares, 1 for one that is not named.
        pump: Is called when what waits for company has waited long enough.
        step: That of what runs here on what is planned for it.
        coming: Buckets of a method that are planned, and that the lane has not been told of.
    """

    def __init__(
        self,
        lane: LaneProxy,
        policy: Policy,
        weights: Mapping[str, float],
        pump: Callable[[], None],
        step: Step,
        coming: Callable[[ServedMethod], Sequence[Sizes]],
    ) -> None:
        self.lane = lane
        self._step = step
        self._coming = coming
        self._lacking: dict[ServedMethod, list[Sizes]] = {}  # buckets that are planned and not warm
        self.waiting: LaneScheduler[Part] = LaneScheduler(lane.costs, FairShare(weights), policy)
        self._free_s = 0.0  # when all that was given to the lane is over, at the latest
        self._staged_s = 0.0  # what the batch that was given to it last takes at the most
        self._pump = pump
        self._timer: asyncio.TimerHandle | None = None
        self._warm: dict[ServedMethod, list[Candidate]] = {}

    def warm_changed(self) -> list[Part]:
        """Plan with what is warm now; the parts that nothing covers any more."""
        lost: list[Part] = []
        self._lacking.clear()
        warm = self.lane.held.warm
        for method in {*warm, *self._warm}:
            candidates = list(warm.get(method, ()))
            if candidates != self._warm.get(method):
                self._warm[method] = candidates
                lost += self.waiting.set_warm(method, candidates)
        return lost

    def forget(self, method: ServedMethod) -> None:
        """A method of which nothing waits or runs, or ever will."""
        self._warm.pop(method, None)
        self.waiting.grids.forget(method)
        self.lane.costs.forget(method)

    def covers(self, part: Part) -> bool:
        """Whether the lane has something warm for it."""
        return self.waiting.grids.covers(part.method, part.need, part.rows)

    def offer(self, parts: Sequence[Part]) -> Refusal | None:
        """Let all of these wait, if they will be answered in time; why not, else."""
        free_s = self._free_s if self.lane.batch is not None else 0.0
        return self.waiting.offer(parts, asyncio.get_running_loop().time(), free_s)

    def give_up_to(self, others: Sequence[LaneQueue]) -> list[Part]:
        """Let those parts go that one of the others covers, which are preferred."""
        gone = [part for part in self.waiting.items() if any(other.covers(part) for other in others)] if others else []
        for part in gone:
            self.waiting.remove(part)
        return gone

    def ran(self, batch: Batch) -> None:
        """A batch of this queue is over; if another one was staged, it begins now."""
        self.waiting.ran(batch.method, batch.predicted_us, batch.took_us)
        if self.lane.batch is not None:
            self._free_s = asyncio.get_running_loop().time() + self._staged_s

    def overdue(self) -> list[Part]:
        """Parts that there is no time left to run; they wait no longer."""
        return self.waiting.overdue(asyncio.get_running_loop().time())

    def form(self) -> Batch | None:
        """The next batch, of parts that wait no longer; None if nothing waits, or all of it for company.

        While the lane runs one, only what is full is a batch: other rows had better wait for what comes meanwhile.
        """
        loop = asyncio.get_running_loop()
        staged = self.lane.batch is not None
        start_s = max(loop.time(), self._free_s) if staged else loop.time()
        group = self.waiting.next(start_s, full=staged)
        if group is None:
            if self.waiting and not staged:
                self._ask_again(loop)
            return None
        self._staged_s = group.bound_us * 1e-6
        self._free_s = start_s + self._staged_s
        method = group.items[0].method
        full = method.mergeable and sum(part.rows for part in group.items) == group.candidate.bucket[str(method.batch)]
        alike = self.waiting.items() if full and self.lane.memory.tight else ()
        batch = Batch(
            method=method,
            parts=group.items,
            executable=group.candidate,
            formed_ns=time.time_ns(),
            lane=self.lane.name,
            predicted_us=group.cost_us,
            waiting_rows=sum(part.rows for part in alike if part.method is method),
        )
        batch.step = self._step_of(batch)
        return batch

    def _step_of(self, batch: Batch) -> Step:
        if self._step is not Step.EXACT:
            return self._step
        lacking = self._lacking.get(batch.method)
        if lacking is None:
            lacking = [*self.lane.held.lacking(batch.method), *self._coming(batch.method)]
            self._lacking[batch.method] = lacking
        if not lacking:  # as it is almost always
            return Step.EXACT
        need, bucket = batch.need, batch.executable.bucket
        smaller = any(covers(one, need) and covers(bucket, one) and one != bucket for one in lacking)
        return Step.LARGER if smaller else Step.EXACT

    def _ask_again(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self.waiting.ready_s, self._pump)
