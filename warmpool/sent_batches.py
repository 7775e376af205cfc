"""The batches that lie in a lane's arena: one that runs and, in the other half, perhaps one that is to run next.

So a lane goes on at once with the next batch, and what the front takes to write it costs no time in between.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from numpy.typing import NDArray

from warmpool.arena import HALVES, Arena
from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.load_plan import Loadable

STAGED_US_MAX = 5000.0  # a run that is predicted to take longer gains little, and the next batch might change meanwhile


class _Sent(NamedTuple):
    """A batch: what it runs on, in which half of the arena it lies, and which of the arena's runs it is."""

    batch: Batch
    loadable: Loadable
    half: int
    number: int


class SentBatches:
    """What was given to a lane and is not answered, in this order."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._sent: deque[_Sent] = deque()
        self._last: _Sent | None = None  # whose results are there

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def running(self) -> Batch | None:
        """The one that runs."""
        return self._sent[0].batch if self._sent else None

    @property
    def end_soon(self) -> bool:
        """Whether one runs, for a short time only, and no other one is to follow."""
        return len(self._sent) == 1 and self._sent[0].batch.predicted_us <= STAGED_US_MAX

    @property
    def executables(self) -> set[int]:
        """The numbers of those that run, or are to next."""
        return {sent.loadable.candidate.id for sent in self._sent}

    @property
    def methods(self) -> set[ServedMethod]:
        """Of all batches."""
        return {sent.batch.method for sent in self._sent}

    def write(self, batch: Batch, loadable: Loadable) -> int:
        """Write a batch into a half that is free, padded; which half that is."""
        assert len(self._sent) < HALVES, batch
        before = self._sent[-1] if self._sent else None
        half, number = (1 - before.half, before.number + 1) if before else (0, self._arena.runs_begun + 1)
        batch.fill([self._arena.array(region, half) for region in loadable.inputs])
        batch.sent_ns, batch.sent_s = time.time_ns(), time.perf_counter()
        self._sent.append(_Sent(batch, loadable, half, number))
        return half

    def over(self, end_ns: int) -> tuple[Batch, Loadable]:
        """The one that ran is over, and what it ran on. One that was to follow begins now, and took no time so far."""
        self._last = last = self._sent.popleft()
        if self._sent:
            following = self._sent[0].batch
            following.sent_ns, following.sent_s = end_ns, time.perf_counter()
        return last.batch, last.loadable

    def results(self, batch: Batch) -> list[NDArray[Any]]:
        """Views of the results of the one that is over, valid until the next one is written."""
        assert self._last is not None
        assert self._last.batch is batch, batch
        return [self._arena.array(region, self._last.half) for region in self._last.loadable.outputs]

    def abandon(self, *, blameless: bool) -> list[Batch]:
        """The lane is gone; what was under way. `blameless`: none of these has to do with it."""
        batches = [sent.batch for sent in self._sent]
        for sent in self._sent:
            sent.batch.begun = self._arena.runs_begun >= sent.number and not blameless
        self._sent.clear()
        return batches
