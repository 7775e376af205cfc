"""Parts and batches: what waits, what runs together, how rows are padded going in and cut coming out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool import messages
from warmpool.catalog import ServedMethod
from warmpool.fallback import Step, together
from warmpool.manifest import TensorSpec, bucket_name
from warmpool.selection import Candidate, padding_share
from warmpool.symbolic import shape_of

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PartResult:
    """The answer to one part: outputs of true shape, its own copies, and what happened. Times in ns since the epoch.

    Of the whole batch: `batch_rows` of requests and `padded_rows` of nobody make the bucket's rows; so do `elements`
    and `padded_elements` all that its inputs have.
    """

    outputs: list[Array]
    lane: str
    bucket: str
    padding: float
    batch_rows: int
    padded_rows: int
    elements: int
    padded_elements: int
    cold: bool
    step: Step
    arrived_ns: int
    formed_ns: int
    sent_ns: int
    run_start_ns: int
    run_end_ns: int
    received_ns: int


@dataclass(slots=True, eq=False)
class Part:
    """Rows of one request that run together: all of them, or as many as fit the largest bucket.

    `need` has the size of every dimension of the method, rows included; `inputs` follow the manifest's order.
    `arrived_s` and `deadline_s` are of the event loop's clock; `priority` is as `warmpool.scheduling.work.Item` has it.
    """

    method: ServedMethod
    need: dict[str, int]
    inputs: list[Array]
    deadline_s: float
    arrived_ns: int
    answer: asyncio.Future[PartResult]
    arrived_s: float = 0.0
    priority: int = 0
    cold: bool = False
    runs: int = 0
    unwritten: int = 0  # of these, runs that never were, for a neighbour's rows could not be written
    shortages: int = 0  # runs for which there was no room
    pieces: list[Part] = field(default_factory=list)  # what runs in its place
    failed_on: frozenset[str] = frozenset()  # lanes that did not get a batch with it done

    @property
    def rows(self) -> int:
        return self.need[self.method.batch] if self.method.batch else 1

    @property
    def need_of_a_row(self) -> dict[str, int]:
        """What the smallest piece needs that it can be cut into."""
        return {**self.need, self.method.batch: 1} if self.method.batch else self.need

    def fail(self, error: Exception) -> None:
        """Answer it so, if it has no answer yet."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def failed(self, batch: Batch, *, out_of_memory: bool) -> None:
        """A batch that it was in was not done, for want of room or for whatever reason."""
        self.runs -= out_of_memory or not batch.begun  # that says nothing of the part
        self.shortages += out_of_memory
        if not out_of_memory or self.shortages > 1:  # at first a smaller one may do, on the same lane
            self.failed_on |= {batch.lane}

    def cut_into(self, rows: int) -> list[Part]:
        """Parts of at most so many rows that make up this one, in order."""
        has_rows = [spec.shape[:1] == (self.method.batch,) for spec in self.method.spec.inputs]
        return [
            replace(
                self,
                need={**self.need, str(self.method.batch): min(rows, self.rows - row)},
                inputs=[
                    array[row : row + rows] if cut else array for array, cut in zip(self.inputs, has_rows, strict=True)
                ],
                answer=self.answer.get_loop().create_future(),
            )
            for row in range(0, self.rows, rows)
        ]

    def fall_apart(self, rows: int) -> list[Part]:
        """The same, to run in its place: once all are answered, or one has failed, so is this one."""
        self.pieces = self.cut_into(rows)
        for piece in self.pieces:
            piece.answer.add_done_callback(self._answered)
        return self.pieces

    def _answered(self, answer: asyncio.Future[PartResult]) -> None:
        if self.answer.done() or answer.cancelled():
            return
        if error := answer.exception():
            self.answer.set_exception(error)
        elif all(piece.answer.done() and not piece.answer.exception() for piece in self.pieces):
            results = [piece.answer.result() for piece in self.pieces]
            slowest = max(results, key=lambda result: result.received_ns)
            step = together([result.step for result in results])
            self.answer.set_result(replace(slowest, outputs=joined(results), step=step))


@dataclass(slots=True, eq=False)
class Batch:
    """Parts of one method that run as one call of one executable. Rows lie one part after the other.

    `predicted_us` is what it was to take from sent to received, `took_us` what it did.
    """

    method: ServedMethod
    parts: list[Part]
    executable: Candidate
    formed_ns: int
    lane: str = ""
    predicted_us: float = 0.0
    sent_ns: int = 0
    sent_s: float = 0.0  # by `time.perf_counter`
    took_us: float = 0.0
    elements: int = 0
    padded_elements: int = 0
    waiting_rows: int = 0  # that could have run with it on a larger executable
    begun: bool = True  # False if its lane died before it came to it
    step: Step = Step.EXACT

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def need(self) -> dict[str, int]:
        """Rows add up, every other dimension is as large as the largest."""
        need: dict[str, int] = {}
        for part in self.parts:
            for name, size in part.need.items():
                known = need.get(name, 0)
                need[name] = known + size if name == self.method.batch else max(known, size)
        return need

    @property
    def padded_rows(self) -> int:
        """Rows of the bucket that nobody asked for."""
        return self.executable.bucket[self.method.batch] - self.rows if self.method.batch else 0

    @property
    def padding(self) -> float:
        """The share of its input elements that is padding, 0 to 1."""
        return padding_share(self.elements, self.elements + self.padded_elements)

    def fill(self, destinations: Sequence[Array]) -> None:
        """Write every part's rows into the bucket's tensors, and pad values everywhere else."""
        elements = whole = 0
        for index, (spec, destination) in enumerate(zip(self.method.spec.inputs, destinations, strict=True)):
            sources = [part.inputs[index] for part in self.parts]
            fill(spec, destination, sources)
            elements += sum(source.size for source in sources)
            whole += destination.size
        self.elements, self.padded_elements = elements, whole - elements

    def cut(self, part: Part, row: int, results: Sequence[Array]) -> list[Array]:
        """One part's outputs, in its true shapes, copied out of the bucket's tensors; its rows begin at `row`."""
        shapes = [shape_of(spec.shape, part.need) for spec in self.method.spec.outputs]
        start = row if self.method.mergeable else 0
        return [take(result, shape, start) for result, shape in zip(results, shapes, strict=True)]

    def result(
        self, part: Part, row: int, results: Sequence[Array], lane: str, done: messages.Done, received_ns: int
    ) -> PartResult:
        """The answer to a part whose rows begin at `row`."""
        return PartResult(
            outputs=self.cut(part, row, results),
            lane=lane,
            bucket=self.bucket,
            padding=self.padding,
            batch_rows=self.rows,
            padded_rows=self.padded_rows,
            elements=self.elements,
            padded_elements=self.padded_elements,
            cold=part.cold,
            step=Step.HELD if part.cold else self.step,
            arrived_ns=part.arrived_ns,
            formed_ns=self.formed_ns,
            sent_ns=self.sent_ns,
            run_start_ns=done.start_ns,
            run_end_ns=done.end_ns,
            received_ns=received_ns,
        )

    @property
    def bucket(self) -> str:
        return bucket_name(self.executable.bucket)


async def answers(parts: Sequence[Part], too_late: Callable[[Sequence[Part]], Exception]) -> list[PartResult]:
    """The answers to all parts of a request; what any of them fails with does not wait for the others.

    When its time has run out, one of them fails with what `too_late` gives.
    """

    def ring() -> None:
        next((part for part in parts if not part.answer.done()), parts[0]).fail(too_late(parts))

    timer = asyncio.get_running_loop().call_at(parts[0].deadline_s, ring)
    try:
        if len(parts) > 1:
            done, _ = await asyncio.wait([part.answer for part in parts], return_when=asyncio.FIRST_EXCEPTION)
            for answer in done:
                answer.result()
        return [await part.answer for part in parts]
    finally:
        timer.cancel()


def joined(results: Sequence[PartResult]) -> list[Array]:
    """The outputs of parts of one request, put together along their rows."""
    if len(results) == 1:
        return results[0].outputs
    return [np.concatenate(arrays) for arrays in zip(*(result.outputs for result in results), strict=True)]


def fill(spec: TensorSpec, destination: Array, sources: Sequence[Array]) -> None:
    """Lay the sources one after the other along the first axis of a larger tensor; the rest becomes the pad value.

    Sources that cover the destination leave nothing to pad, and a scalar has only one.
    """
    if len(sources) == 1 and sources[0].shape == destination.shape:
        np.copyto(destination, sources[0])
        return
    if sum(source.size for source in sources) != destination.size:
        destination.fill(0 if spec.pad is None else spec.pad)
    row = 0
    for source in sources:
        window = (slice(row, row + source.shape[0]), *(slice(size) for size in source.shape[1:]))
        destination[window] = source
        row += source.shape[0]


def take(result: Array, shape: tuple[int, ...], row: int = 0) -> Array:
    """A copy of the leading part of `result` that has this shape, its first axis beginning at `row`."""
    if not shape:
        return np.array(result)
    window = (slice(row, row + shape[0]), *(slice(size) for size in shape[1:]))
    return np.array(result[window], order="C")
