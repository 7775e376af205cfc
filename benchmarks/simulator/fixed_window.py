"""The baseline: a dynamic batcher as servers have it today (NVIDIA Triton's, in the terms of its model configuration).

Requests wait in the order of their arrival. As soon as a preferred number of them waits they run; less, when the first
has waited for the whole window. All are padded to the longest among them, and that, like their number, to the next size
that is compiled. A request that waited for too long is dropped, and a full queue refuses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from benchmarks.simulator.simulation import Request, Run
from warmpool.selection import Candidate


@dataclass(frozen=True, slots=True)
class Window:
    """What an operator sets.

    Attributes:
        delay_s: `max_queue_delay_microseconds`: how long the first one waits for more, while the lane is idle.
        batch_max: `max_batch_size`, in rows; also the one preferred size.
        timeout_s: `default_timeout_microseconds` with the action to reject: what waited for longer is dropped.
        queue_max: `max_queue_size`, in requests; None for no bound.
    """

    delay_s: float
    batch_max: int
    timeout_s: float = inf
    queue_max: int | None = None


class FixedWindow:
    """One lane's queue, with what is compiled for its one method."""

    def __init__(self, window: Window, candidates: Sequence[Candidate], batch: str) -> None:
        self._window = window
        self._waiting: deque[Request] = deque()
        self._batch = batch
        self._length = next((name for name in candidates[0].bucket if name != batch), "")
        self._rows = sorted({one.bucket[batch] for one in candidates})
        self._lengths = sorted({one.bucket.get(self._length, 1) for one in candidates})
        self._compiled = {(one.bucket[batch], one.bucket.get(self._length, 1)): one for one in candidates}
        assert window.batch_max <= self._rows[-1], (window, self._rows)

    def arrive(self, request: Request, now_s: float) -> bool:  # noqa: ARG002  # as `Queue` has it
        if self._window.queue_max is not None and len(self._waiting) >= self._window.queue_max:
            return False
        self._waiting.append(request)
        return True

    def start(self, now_s: float) -> tuple[Run | None, Sequence[Request]]:
        dropped: list[Request] = []
        while self._waiting and now_s > self._waiting[0].arrived_s + self._window.timeout_s:
            dropped.append(self._waiting.popleft())
        if not self._waiting or now_s < self._due_s():
            return None, dropped
        taken = [self._waiting.popleft()]
        rows = taken[0].rows
        while self._waiting and rows + self._waiting[0].rows <= self._window.batch_max:
            rows += self._waiting[0].rows
            taken.append(self._waiting.popleft())
        longest = max(request.need.get(self._length, 1) for request in taken)
        covering = (
            self._rows[bisect_left(self._rows, rows)],
            self._lengths[bisect_left(self._lengths, longest)],
        )
        return Run(taken, self._compiled[covering]), dropped

    def wake_s(self, now_s: float) -> float:  # noqa: ARG002
        return self._due_s() if self._waiting else inf

    def ended(self, run: Run, took_us: float) -> None:
        """It learns nothing."""

    def _due_s(self) -> float:
        """From when on what waits may run."""
        rows = 0
        for request in self._waiting:
            rows += request.rows
            if rows >= self._window.batch_max:
                return 0.0
        return self._waiting[0].arrived_s + self._window.delay_s
