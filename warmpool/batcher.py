"""The batcher: requests wait here while lanes are busy, and leave as batches as soon as one is idle.

What runs when, and who is refused, is decided by `warmpool.scheduling`, one queue for each lane; this file has the
callers who wait. It settles every part exactly once, with a result or with an error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat, takewhile

from warmpool import messages
from warmpool.batches import Batch, Part, PartResult, answers
from warmpool.catalog import ServedMethod
from warmpool.cold_queue import IN_VAIN, ColdQueue
from warmpool.errors import DeadlineExceeded, LaneFailed, NotWarm, Overloaded, TooLarge, WarmpoolError
from warmpool.fallback import Step
from warmpool.lane_queue import LaneQueue
from warmpool.lanes import LaneProxy
from warmpool.scheduling.work import Policy, Refusal
from warmpool.selection import Sizes
from warmpool.settings import Settings

log = logging.getLogger(__name__)

TOO_LATE = "the request's time ran out before it was answered"
SHUTTING_DOWN = "the instance is shutting down"
RUNS_MAX = 2  # a part whose run failed is run once more, on whichever lane comes first; without room, smaller before


class Batcher:
    """Waiting parts by the lane that is to run them, and the lanes in order of preference.

    A part waits for the first lane that holds a warm executable for it, or for none yet. So what a busy lane or a
    missing executable holds up is held up alone; what waits where, and in how large pieces, is decided anew when what
    is warm changes. Where there was no room for a batch, that is less than before.

    Args:
        rows_max: Rows that may wait.
        finished: Is told of every batch that ran.
        policy: How each lane's queue is run.
        weights: The models' shares of a lane's time, 1 for one that is not named.

    Attributes:
        open: Until the weights are known to be whole, nothing runs.
        cold: What waits for no lane yet.
    """

    def __init__(
        self,
        rows_max: int,
        finished: Callable[[Batch, LaneProxy], None],
        policy: Policy | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.open = self._closed = False
        self._queues: dict[LaneProxy, LaneQueue] = {}
        self.cold = ColdQueue()
        self._rows_max = rows_max
        self._finished = finished
        self._unnoted: deque[tuple[LaneProxy, Batch]] = deque()
        self._policy = policy or Policy()
        self._weights = weights or {}

    @classmethod
    def of(cls, settings: Settings, finished: Callable[[Batch, LaneProxy], None]) -> Batcher:
        """The batcher of an instance."""
        policy = Policy(aging_s=settings.priority_aging_ms / 1e3, gather_s=settings.gather_ms / 1e3)
        return cls(settings.queue_rows_max, finished, policy, settings.weights)

    def __repr__(self) -> str:
        return f"<Batcher {self.rows_waiting} of {self._rows_max} rows waiting, {[*self._queues]}>"

    def serve(self, lanes: Iterable[LaneProxy]) -> None:
        """The lanes that run things, those to be preferred first."""
        self._queues = {
            lane: LaneQueue(lane, self._policy, self._weights, self._pump, step, self._coming)
            for lane, step in zip(lanes, chain([Step.EXACT], repeat(Step.CPU)), strict=False)
        }

    @property
    def rows_waiting(self) -> int:
        """Rows in all queues."""
        return self.cold.rows + sum(queue.waiting.rows for queue in self._queues.values())

    def waiting(self) -> list[Part]:
        """The parts that wait."""
        return [*self.cold, *(part for queue in self._queues.values() for part in queue.waiting.items())]

    def chunk_rows(self, method: ServedMethod, need: Sizes) -> int:
        """How many rows of this need a part may have: what is warm decides, what may be while nothing is."""
        if method.batch is None:
            return 1
        for queue in self._queues.values():
            if rows := queue.waiting.grids.rows_max(method, need):
                return rows
        known = (lane.held.rows_max(method, need) for lane in self._queues)
        return next((rows for rows in known if rows), method.dims[method.batch].sizes[-1])

    async def run(self, parts: Sequence[Part]) -> list[PartResult]:
        """Queue the parts of one request, all or none of them, and wait for their answers.

        Raises:
            TooLarge: it has more rows than may wait at all.
            Overloaded: too many rows wait already, or it would not be answered in time.
            NotWarm: no lane holds an executable that covers it, nor will one in time as far as is known.
            DeadlineExceeded: its time ran out.
            LaneFailed: it ran twice and failed twice, or found no room three times.
        """
        try:
            self._admit(parts)
            self._pump()
            return await answers(parts, self._too_late)
        finally:
            for part in parts:
                self._leave(part)

    def changed(self) -> None:
        """What lanes hold or may come to hold has changed: decide anew where every part waits, if at all."""
        moving: list[Part] = []
        preferred: list[LaneQueue] = []
        for queue in self._queues.values():
            moving += queue.warm_changed()
            moving += queue.give_up_to(preferred)
            preferred.append(queue)
        moving += self.cold.clear()
        for part in sorted(moving, key=lambda part: part.arrived_ns):
            if not part.answer.done():
                self._place_again(part)
        self._pump()

    def finished(self, lane: LaneProxy, batch: Batch, done: messages.Done) -> None:
        """Settle the parts of a batch with its results."""
        received_ns = time.time_ns()
        batch.took_us = (time.perf_counter() - batch.sent_s) * 1e6  # other clocks may have been set meanwhile
        results, row = lane.results(batch), 0
        for part in batch.parts:
            if not part.answer.done():  # else cancelled or late while it ran: nobody waits
                try:
                    part.answer.set_result(batch.result(part, row, results, lane.name, done, received_ns))
                except Exception as error:  # noqa: BLE001  whatever it is: the others are not to suffer
                    part.answer.set_exception(error)
            row += part.rows
        self._queues[lane].ran(batch)
        self._pump()
        self._unnoted.append((lane, batch))
        asyncio.get_running_loop().call_soon(self._note)  # behind the callers: they go on first

    def _note(self) -> None:
        """Keep what batches took, whoever wants to know it."""
        while self._unnoted:
            lane, batch = self._unnoted.popleft()
            try:
                lane.costs.observe(batch.method, batch.executable, batch.took_us)
                self._finished(batch, lane)
            except Exception:  # it is nobody's answer
                log.exception("a batch cannot be noted")

    def failed(self, batch: Batch | None, *, out_of_memory: bool = False) -> None:
        """Run a failed batch's parts once more, smaller where there was no room; fail those that had that chance."""
        for part in batch.parts if batch else ():
            if batch is None or part.answer.done():
                continue
            part.failed(batch, out_of_memory=out_of_memory)
            if self._closed:
                part.fail(NotWarm(SHUTTING_DOWN))
            elif (runs := part.runs - part.unwritten) >= RUNS_MAX or part.shortages > RUNS_MAX:
                part.fail(LaneFailed(f"it was run {runs + part.shortages} times and failed; the log says why"))
            else:
                self._place_again(part)
        self.changed()

    def forget(self, method: ServedMethod) -> None:
        """A method of which nothing waits or runs, or ever will."""
        self._note()  # what ran of it last would bring it back
        for queue in self._queues.values():
            queue.forget(method)

    def withdraw(self, methods: Iterable[ServedMethod], reason: str) -> None:
        """Fail what waits for methods that turn out not to be fit to serve."""
        gone = set(methods)
        self._settle(NotWarm(reason, retry_after_s=10.0), lambda part: part.method in gone)

    def drain(self) -> None:
        """Nobody waits for company any more: no more will come."""
        for queue in self._queues.values():
            queue.waiting.policy = replace(self._policy, gather_s=0.0)
        self._pump()

    def close(self) -> None:
        """Settle everything that still waits: the instance is going."""
        self._closed = True
        self._settle(NotWarm(SHUTTING_DOWN), lambda _: True)

    # Coming

    def _admit(self, parts: Sequence[Part]) -> None:
        rows = sum(part.rows for part in parts)
        if rows > self._rows_max:
            raise TooLarge(f"{rows} rows, allowed in one request: {self._rows_max}")
        if self.rows_waiting + rows > self._rows_max:
            raise Overloaded(f"{self.rows_waiting} rows wait, {self._rows_max} may")
        if parts[0].deadline_s <= asyncio.get_running_loop().time():
            raise DeadlineExceeded(TOO_LATE)
        queue = next((queue for queue in self._queues.values() if all(map(queue.covers, parts))), None)
        if queue is None:
            for part in parts:
                self.cold.hold(part, self._queues)
        elif refusal := self._offer(queue, parts):
            raise Overloaded(f"it would not be answered in time: {refusal.reason}", refusal.retry_after_s)

    def _offer(self, queue: LaneQueue, parts: Sequence[Part]) -> Refusal | None:
        """Offer parts to a lane, and to those after it that have a device of their own."""
        refusal = queue.offer(parts)
        for other in self._queues.values() if refusal else ():
            if other.lane.mode != queue.lane.mode and all(map(other.covers, parts)) and not other.offer(parts):
                return None
        return refusal

    def _place_again(self, part: Part) -> None:
        """Let a part that was taken in before wait where it belongs now, in pieces where fewer rows run together."""
        # It goes back to a lane that it failed on only if no other covers it.
        for queue in sorted(self._queues.values(), key=lambda queue: queue.lane.name in part.failed_on):
            if queue.covers(part):
                queue.waiting.force(part)
                return
            if rows := queue.waiting.grids.rows_max(part.method, part.need):
                for piece in part.fall_apart(rows):
                    self._place_again(piece)
                return
        try:
            self.cold.hold(part, self._queues)
        except NotWarm as error:
            part.answer.set_exception(error)

    def _coming(self, method: ServedMethod) -> Sequence[Sizes]:
        return self.cold.forecast.lacking(method) if self.cold.forecast else ()

    # Running

    def _pump(self) -> None:
        """Give every idle lane a batch, if there is one for it."""
        for queue in self._queues.values() if self.open else ():
            while queue.waiting and (queue.lane.idle or (queue.waiting.full and queue.lane.may_stage)):
                if not self._run_next(queue):
                    break

    def _run_next(self, queue: LaneQueue) -> bool:
        """Give a lane what is next in its queue; False if everything waits for company."""
        for part in queue.overdue():
            part.fail(DeadlineExceeded("there is not enough time left to answer the request"))
        batch = queue.form()
        if batch is None:
            return False
        batch.parts = [part for part in batch.parts if not part.answer.done()]
        if not batch.parts:
            return True
        for part in batch.parts:
            part.runs += 1
        for preferred in takewhile(lambda lane: lane is not queue.lane, self._queues):
            preferred.pass_over(batch)
        try:
            queue.lane.submit(batch)
        except Exception as error:  # what one of them brought cannot be written: alone, each only fails itself
            log.exception("a batch cannot be written")
            self._apart(batch.parts, error)
        return True

    def _apart(self, parts: Sequence[Part], error: Exception) -> None:
        if len(parts) == 1:
            parts[0].answer.set_exception(error)
            return
        for part in parts:
            part.unwritten += 1
            self._place_again(part)

    # Leaving

    def _too_late(self, parts: Sequence[Part]) -> WarmpoolError:
        """What a request is told whose time has run out."""
        return (self.cold.in_vain(parts) if self.open else NotWarm(IN_VAIN)) or DeadlineExceeded(TOO_LATE)

    def _leave(self, part: Part) -> None:
        """Nobody waits for the part any more: its rows leave at once, if they do not run already."""
        for piece in part.pieces:
            self._leave(piece)
        self.cold.discard(part)
        for queue in self._queues.values():
            queue.waiting.remove(part)
        part.answer.cancel()

    def _settle(self, error: WarmpoolError, concerned: Callable[[Part], bool]) -> None:
        """Fail what waits. Whoever waits for it then takes it out of its queue."""
        for part in filter(concerned, self.waiting()):
            part.fail(error)
