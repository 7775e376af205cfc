"""A lane without a process, and a loop whose clock the test moves: what a batcher decides can be seen step by step."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tests.warmpool.served import part
from warmpool import messages
from warmpool.batcher import Batcher
from warmpool.batches import Batch, Part, PartResult
from warmpool.catalog import ServedMethod
from warmpool.lanes import LaneProxy
from warmpool.scheduling.work import Policy
from warmpool.selection import Candidate, Sizes, covers


class FixedCosts:
    """Predicts what was measured at publish, whatever batches take; bounds are `spread` times that."""

    version = 0
    spread = 1.0

    def __init__(self) -> None:
        self.observed: list[tuple[ServedMethod, Candidate]] = []

    def predicted_us(self, method: ServedMethod, candidate: Candidate) -> float:
        return candidate.cost_us

    def bound_us(self, method: ServedMethod, candidate: Candidate) -> float:
        return candidate.cost_us * self.spread

    def observe(self, method: ServedMethod, candidate: Candidate, took_us: float) -> None:
        self.observed.append((method, candidate))

    def forget(self, method: ServedMethod) -> None:
        self.observed = [one for one in self.observed if one[0] is not method]


class FakeLane:
    """The part of LaneProxy that a batcher uses. It doubles every input; `finish`, `fail` and `die` are the test's.

    Like an arena, its memory is overwritten by the next batch.
    """

    def __init__(self, name: str, batcher: Batcher) -> None:
        self.name = name
        self.mode = "jaxlib"
        self.costs = FixedCosts()
        self.warm: defaultdict[ServedMethod, list[Candidate]] = defaultdict(list)
        self.plan: defaultdict[ServedMethod, list[dict[str, int]]] = defaultdict(list)
        self.known = True
        self.alive = True
        self.stages = False  # whether it takes a batch while it runs one
        self.batch: Batch | None = None
        self.staged: Batch | None = None
        self.batches: list[Batch] = []
        self.wanted: list[tuple[ServedMethod, dict[str, int]]] = []
        self.passed_over: list[Batch] = []
        self.memory = SimpleNamespace(tight=False)
        self._batcher = batcher
        self._memory: dict[Batch, list[np.ndarray]] = {}
        self._free: list[np.ndarray] = []  # what the next batch overwrites

    @property
    def held(self) -> FakeLane:
        """It is its own `Holdings`."""
        return self

    def __repr__(self) -> str:
        return f"<FakeLane {self.name}>"

    @property
    def idle(self) -> bool:
        return self.alive and self.batch is None

    @property
    def given(self) -> list[Batch]:
        """What it runs, and what it is to run next."""
        return [batch for batch in (self.batch, self.staged) if batch]

    @property
    def may_stage(self) -> bool:
        return self.alive and self.stages and self.batch is not None and self.staged is None

    def may_cover(self, method: ServedMethod, need: Sizes) -> bool:
        return not self.known or any(covers(bucket, need) for bucket in self.plan[method])

    def lacking(self, method: ServedMethod) -> list[dict[str, int]]:
        warm = [candidate.bucket for candidate in self.warm[method]]
        return [bucket for bucket in self.plan[method] if bucket not in warm]

    def rows_max(self, method: ServedMethod, need: Sizes) -> int:
        assert method.batch is not None
        one = {**need, method.batch: 1}
        return max((bucket[method.batch] for bucket in self.plan[method] if covers(bucket, one)), default=0)

    def want(self, method: ServedMethod, need: Sizes) -> bool:
        self.wanted.append((method, dict(need)))
        return self.known and self.may_cover(method, need)

    def pass_over(self, batch: Batch) -> None:
        self.passed_over.append(batch)

    def submit(self, batch: Batch) -> None:
        assert self.idle or self.may_stage, self
        sizes = batch.executable.bucket
        assert batch.executable in self.warm[batch.method], "it is not warm here"
        inputs = [np.empty(shape, dtype) for dtype, shape in batch.method.inputs_of(sizes)]
        batch.fill(inputs)
        batch.sent_ns, batch.sent_s = batch.formed_ns, time.perf_counter()
        for array in self._free:
            array.fill(99)
        self._free = []
        self._memory[batch] = [np.array(inputs[0] * 2) for _ in batch.method.spec.outputs]
        if self.batch is None:
            self.batch = batch
        else:
            self.staged = batch
        self.batches.append(batch)

    def results(self, batch: Batch) -> list[np.ndarray]:
        self._free = self._memory.pop(batch)
        return self._free

    # What the test does to it

    def plans(self, method: ServedMethod, *buckets: dict[str, int]) -> FakeLane:
        self.plan[method].extend(buckets)
        return self

    def warms(self, method: ServedMethod, cost_us: float = 10.0, **bucket: int) -> FakeLane:
        """An executable is warm from now on; a batch costs the same whatever its size, unless the test says so."""
        if bucket not in self.plan[method]:
            self.plan[method].append(bucket)
        self.warm[method].append(Candidate(len(self.warm[method]), bucket, cost_us))
        self._batcher.changed()
        return self

    def finish(self) -> None:
        batch, self.batch, self.staged = self.batch, self.staged, None
        assert batch is not None
        self._batcher.finished(cast("LaneProxy", self), batch, messages.Done(start_ns=1, end_ns=2))

    def fail(self) -> None:
        batch, self.batch, self.staged = self.batch, self.staged, None
        assert batch is not None
        self._free = self._memory.pop(batch)
        self._batcher.failed(batch)

    def die(self, *, stays_unknown: bool = True) -> None:
        """Like a killed process: nothing is warm, and until another has said hello anything may come."""
        batches: list[Batch | None] = [*self.given] or [None]
        self.batch = self.staged = None
        self._memory.clear()
        self.warm.clear()
        self.alive = False
        self.known = not stays_unknown
        if self.known:
            self.plan.clear()
        for batch in batches[1:]:
            assert batch is not None
            batch.begun = False
        for batch in batches:
            self._batcher.failed(batch)

    @property
    def rows(self) -> list[list[Any]]:
        """What each of its batches was made of: the first input of every part."""
        return [[one.inputs[0].tolist() for one in batch.parts] for batch in self.batches]


class World:
    """A batcher, a primary and a CPU lane, and a caller. Has to be made in a running loop."""

    def __init__(self, rows_max: int = 1000, policy: Policy | None = None) -> None:
        self.finished: list[tuple[Batch, str]] = []
        self.batcher = Batcher(rows_max, lambda batch, lane: self.finished.append((batch, lane.name)), policy)
        self.primary, self.cpu = FakeLane("primary", self.batcher), FakeLane("cpu", self.batcher)
        self.batcher.serve(cast("list[LaneProxy]", [self.primary, self.cpu]))
        self.batcher.open = True
        self.parts: dict[asyncio.Task[PartResult], Part] = {}
        self._arrivals = itertools.count()

    async def ask(
        self, served: ServedMethod, values: Any, *, wait_s: float = 1e6, **sizes: int
    ) -> asyncio.Task[PartResult]:
        """A caller's task that has run until it waits."""
        array = np.array(values, np.int32)
        need = {name: sizes.get(name, len(array)) for name in served.dims}
        loop = asyncio.get_running_loop()
        number = next(self._arrivals)
        one = part(
            served,
            need,
            [array],
            arrived_ns=number,
            arrived_s=loop.time() + number * 1e-9,
            deadline_s=loop.time() + wait_s,
        )

        async def answer() -> PartResult:
            return (await self.batcher.run([one]))[0]

        task = loop.create_task(answer())
        self.parts[task] = one
        await rest()
        return task


class ManualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still until a test moves it."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


async def rest() -> None:
    """Let everything that can run now run."""
    for _ in range(8):
        await asyncio.sleep(0)


async def pass_s(seconds: float) -> None:
    """Let time pass, and run what was due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ManualLoop)
    loop.now_s += seconds
    await rest()


def manual_clock(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test, run on a loop whose clock stands still."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=ManualLoop) as runner:
            runner.run(test(*arguments, **named))  # type: ignore[arg-type]

    return run
