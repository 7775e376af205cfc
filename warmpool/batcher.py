"""The batcher: requests wait here while lanes are busy, and leave as batches as soon as one is idle.

No window: an idle lane starts at once with what is there. Decisions are `warmpool.selection`'s; this file holds the
queues. It settles every part exactly once, with a result or with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from warmpool import messages
from warmpool.batches import Batch, Part, PartResult
from warmpool.catalog import ServedMethod
from warmpool.errors import DeadlineExceeded, LaneFailed, NotWarm, Overloaded, TooLarge
from warmpool.lanes import LaneProxy
from warmpool.selection import Sizes, covers, gather, rows_max

GATHER_PARTS_MAX = 64  # how far into a queue a batch looks for company
SHUTTING_DOWN = "the instance is shutting down"
RUNS_MAX = 2  # a part whose run failed is run once more, on whichever lane comes first


class Batcher:
    """Waiting parts by method and by the lane that is to run them, and the lanes in order of preference.

    A part waits for the first lane that holds a warm executable for it, or for none yet. So what a busy lane or a
    missing executable holds up is held up alone; what is queued where is decided anew when what is warm changes.
    """

    def __init__(self, rows_max: int, finished: Callable[[Batch, LaneProxy], None]) -> None:
        self.lanes: Sequence[LaneProxy] = ()
        self.open = False  # until the weights are known to be whole, nothing runs
        self.rows_waiting = 0
        self._closed = False
        self._rows_max = rows_max
        self._queues: dict[tuple[ServedMethod, LaneProxy | None], deque[Part]] = {}
        self._finished = finished

    def __repr__(self) -> str:
        return f"<Batcher {self.rows_waiting} of {self._rows_max} rows waiting, {self.lanes}>"

    def chunk_rows(self, method: ServedMethod, need: Sizes) -> int:
        """How many rows of this need a part may have: what is warm decides, the plan while nothing is."""
        if method.batch is None:
            return 1
        for lane in self.lanes:
            if rows := rows_max(lane.held.warm.get(method, ()), need, method.batch):
                return rows
        return method.dims[method.batch].sizes[-1]

    async def run(self, parts: Sequence[Part]) -> list[PartResult]:
        """Queue the parts of one request, all or none of them, and wait for their answers.

        Raises:
            TooLarge: it has more rows than may wait at all.
            Overloaded: too many rows wait already.
            NotWarm: no lane holds or is loading an executable that covers it.
            DeadlineExceeded: its time ran out.
            LaneFailed: it ran twice and failed twice.
        """
        self._admit(parts)
        for part in parts:
            part.cold = self._wait(part) is None
        self._pump()
        try:
            async with asyncio.timeout_at(parts[0].deadline_s):
                return [await part.answer for part in parts]
        except TimeoutError:
            raise DeadlineExceeded("the request's time ran out before it was answered") from None
        finally:
            for part in parts:
                self._leave(part)

    def changed(self) -> None:
        """What lanes hold or may come to hold has changed: decide anew where every part waits, if at all."""
        waiting = [part for queue in self._queues.values() for part in queue]
        for part in waiting:
            self._take(part)
        self._queues.clear()
        for part in sorted(waiting, key=lambda part: part.arrived_ns):
            if part.answer.done():
                continue
            try:
                self._refuse_hopeless(part)
            except NotWarm as error:
                part.answer.set_exception(error)
            else:
                self._wait(part)
        self._pump()

    def finished(self, lane: LaneProxy, batch: Batch, done: messages.Done) -> None:
        """Settle the parts of a batch with its results."""
        received_ns = time.time_ns()
        for part, outputs in zip(batch.parts, batch.cut(lane.results(batch)), strict=True):
            if part.answer.done():
                continue  # cancelled or late while it ran: nobody waits, its neighbours are not touched
            part.answer.set_result(
                PartResult(
                    outputs=outputs,
                    lane=lane.name,
                    bucket=batch.bucket,
                    padding=batch.padding,
                    batch_rows=batch.rows,
                    cold=part.cold,
                    arrived_ns=part.arrived_ns,
                    formed_ns=batch.formed_ns,
                    sent_ns=batch.sent_ns,
                    run_start_ns=done.start_ns,
                    run_end_ns=done.end_ns,
                    received_ns=received_ns,
                )
            )
        self._finished(batch, lane)
        self._pump()

    def failed(self, batch: Batch | None) -> None:
        """Run a failed batch's parts once more; fail those that had their second chance."""
        for part in batch.parts if batch else ():
            if part.answer.done():
                continue
            if batch and not batch.begun:
                part.runs -= 1  # the lane died of something else
            if self._closed:
                part.answer.set_exception(NotWarm(SHUTTING_DOWN))
            elif part.runs >= RUNS_MAX:
                part.answer.set_exception(LaneFailed(f"it was run {part.runs} times and failed; the log says why"))
            else:
                self._wait(part)
        self.changed()

    def withdraw(self, methods: Iterable[ServedMethod], reason: str) -> None:
        """Fail what waits for methods that turn out not to be fit to serve."""
        for method in methods:
            self._settle(NotWarm(reason, retry_after_s=10.0), method)

    def close(self) -> None:
        """Settle everything that still waits: the instance is going."""
        self._closed = True
        self._settle(NotWarm(SHUTTING_DOWN))

    def _settle(self, error: NotWarm, method: ServedMethod | None = None) -> None:
        for (queued, _), queue in self._queues.items():
            for part in queue if method in {None, queued} else ():
                if not part.answer.done():
                    part.answer.set_exception(error)

    def _pump(self) -> None:
        """Give every idle lane a batch, if there is one for it."""
        for lane in self.lanes if self.open else ():
            if lane.idle and (batch := self._form(lane)):
                lane.submit(batch)

    def _form(self, lane: LaneProxy) -> Batch | None:
        """The next batch for a lane: of the method whose first waiting part has waited longest."""
        queues = [queue for (_, taker), queue in self._queues.items() if taker is lane and self._has_head(queue)]
        if not queues:
            return None
        queue = min(queues, key=lambda queue: queue[0].arrived_ns)
        method = queue[0].method
        if queue[0].runs:  # it was in a batch that failed: alone, it can take no neighbour along a second time
            waiting = [queue[0]]
        else:
            waiting = [part for part in islice(queue, GATHER_PARTS_MAX) if not part.answer.done() and not part.runs]
        chosen = gather(
            [part.need for part in waiting], lane.held.warm[method], method.batch if method.mergeable else None
        )
        assert chosen is not None
        indices, executable = chosen
        parts = [waiting[index] for index in indices]
        for part in parts:
            self._take(part)
            part.runs += 1
        return Batch(method=method, parts=parts, executable=executable, formed_ns=time.time_ns())

    def _has_head(self, queue: deque[Part]) -> bool:
        while queue and queue[0].answer.done():
            self._take(queue[0])
        return bool(queue)

    def _preferred(self, part: Part) -> LaneProxy | None:
        """The first lane that holds a warm executable for it; the CPU's only where the primary has none."""
        for lane in self.lanes:
            if any(covers(candidate.bucket, part.need) for candidate in lane.held.warm.get(part.method, ())):
                return lane
        return None

    def _admit(self, parts: Sequence[Part]) -> None:
        rows = sum(part.rows for part in parts)
        if rows > self._rows_max:
            raise TooLarge(f"{rows} rows, allowed in one request: {self._rows_max}")
        if self.rows_waiting + rows > self._rows_max:
            raise Overloaded(f"{self.rows_waiting} rows wait, {self._rows_max} may")
        for part in parts:
            self._refuse_hopeless(part)

    def _leave(self, part: Part) -> None:
        """Nobody waits for the part any more: its rows leave at once, if they do not run already."""
        if part.queue is not None:
            self._take(part)
        if not part.answer.cancel() and not part.answer.cancelled():
            part.answer.exception()  # seen, so that asyncio does not report it as lost

    def _refuse_hopeless(self, part: Part) -> None:
        if not any(lane.may_cover(part.method, part.need) for lane in self.lanes):
            raise NotWarm(
                f"{part.method.model}:{part.method.name} has no executable on this machine that covers"
                f" {', '.join(f'{name}={size}' for name, size in part.need.items()) or 'it'}",
                retry_after_s=10.0,
            )

    def _wait(self, part: Part) -> LaneProxy | None:
        """Queue a part for the lane that is to run it, which is returned: None while nothing warm covers it."""
        lane = self._preferred(part)
        part.queue = self._queues.setdefault((part.method, lane), deque())
        part.queue.append(part)
        self.rows_waiting += part.rows
        return lane

    def _take(self, part: Part) -> None:
        assert part.queue is not None
        part.queue.remove(part)
        part.queue = None
        self.rows_waiting -= part.rows
