"""Ten thousand random schedules on a clock that the test moves: what was promised is kept, and nobody is forgotten.

A lane takes no longer than its bound, since that is what promises are made of. Everything else is drawn: what is warm
and what it costs, who comes when, with how many rows, for how long and how urgent, who leaves, and how long runs take.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import cast

import numpy as np
import pytest

from tests.warmpool.fake_lane import FakeLane, ManualLoop
from tests.warmpool.served import doubling, part
from warmpool.batcher import Batcher
from warmpool.batches import Batch, Part, PartResult
from warmpool.errors import DeadlineExceeded, Overloaded
from warmpool.lanes import LaneProxy
from warmpool.scheduling.work import Policy

SCHEDULES = 10_000
ROWS_MAX = 40
AGING_S = 0.05
SPREAD = 2.0
DUE_S = (0.02, 0.1, 0.5)
NEVER_S = 1e6
METHODS = [doubling("double", model="tiny"), doubling("other", model="tiny"), doubling("double", model="second")]


@dataclass
class Asked:
    """A request: when it came, and what came of it."""

    part: Part
    task: asyncio.Task[list[PartResult]]
    sure: bool  # somebody was before it, or its bound is within its time: if it is taken in, it is promised
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def rank_s(self) -> float:
        return self.part.arrived_s - self.part.priority * AGING_S


@dataclass
class World:
    """One schedule."""

    draw: random.Random
    loop: ManualLoop
    gather_s: float
    patient: bool  # nobody is in a hurry: then the order of service has no exceptions
    asked: list[Asked] = field(default_factory=list)
    running: list[tuple[float, FakeLane]] = field(default_factory=list)

    def __post_init__(self) -> None:
        policy = Policy(aging_s=AGING_S, gather_s=self.gather_s)
        self.batcher = Batcher(ROWS_MAX, lambda batch, lane: None, policy, {"second": 2.0})
        self.lane = FakeLane("primary", self.batcher)
        self.lane.costs.spread = SPREAD
        self.lane.stages = self.draw.random() < 0.5
        self.batcher.serve(cast("list[LaneProxy]", [self.lane]))
        self.batcher.open = True
        for method in METHODS:
            sizes = {1, *self.draw.sample([2, 4, 8], self.draw.randint(1, 3))}
            each = self.draw.choice([1.0, 0.5, 0.1])
            for rows in sorted(sizes):
                cost_us = self.draw.uniform(1e3, 5e3) * (1 + each * (rows - 1))
                self.lane.warms(method, cost_us=cost_us, batch=rows)
        self.seen = 0

    async def ask(self) -> None:
        method = self.draw.choice(METHODS)
        most = self.batcher.chunk_rows(method, {"batch": 1})
        rows = self.draw.randint(1, most)
        now_s = self.loop.now_s
        due_s = NEVER_S if self.patient else self.draw.choice([*DUE_S, NEVER_S])
        one = part(
            method,
            {"batch": rows},
            [np.full(rows, len(self.asked), np.int32)],
            arrived_ns=len(self.asked),
            arrived_s=now_s,
            deadline_s=now_s + due_s,
        )
        one.priority = self.draw.choice([0, 0, 0, 1, 2])
        covering = [held for held in self.lane.warm[method] if held.bucket["batch"] >= rows]
        bound_us = min(covering, key=lambda held: held.cost_us).cost_us * SPREAD
        sure = not self.lane.idle or bool(self.batcher.waiting()) or bound_us * 1e-6 <= due_s
        task = self.loop.create_task(self.batcher.run([one]))
        asked = Asked(one, task, sure)
        self.asked.append(asked)
        task.add_done_callback(partial(self._ended, asked))
        await self._rest()

    async def leave(self) -> None:
        if self.asked:
            self.draw.choice(self.asked).task.cancel()
            await self._rest()

    async def pass_until(self, until_s: float) -> None:
        """Let time pass, and what happens meanwhile: runs end, and then timers go off."""
        while True:
            ends_s = self.running[0][0] if self.running else inf
            timers = self.loop._scheduled  # type: ignore[attr-defined]
            timer_s = timers[0].when() if timers else inf
            if min(ends_s, timer_s) > until_s:
                break
            self.loop.now_s = max(self.loop.now_s, min(ends_s, timer_s))
            if ends_s <= timer_s:
                heapq.heappop(self.running)[1].finish()
            await self._rest()
        self.loop.now_s = until_s
        await self._rest()

    async def _rest(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        assert self.batcher.rows_waiting == sum(one.rows for one in self.batcher.waiting()) <= ROWS_MAX
        for batch in self.lane.batches[self.seen :]:
            self._started(batch)
        self.seen = len(self.lane.batches)
        if self.gather_s == 0:
            assert not (self.lane.idle and self.batcher.waiting()), "an idle lane starts at once"

    def _started(self, batch: Batch) -> None:
        now_s = self.loop.now_s
        took_s = batch.executable.cost_us * 1e-6 * self.draw.choice([0.5, 1.0, SPREAD])
        begins_s = max([now_s, *(end_s for end_s, _ in self.running)])  # one that is staged waits for the other
        heapq.heappush(self.running, (begins_s + took_s, self.lane))
        started = [asked for asked in self.asked if asked.part in batch.parts]
        assert len(started) == len(batch.parts)
        for asked in started:
            assert asked.started_s is None, "run twice"
            asked.started_s = now_s
        if self.patient and self.gather_s == 0:
            self._check_order(started)

    def _check_order(self, started: list[Asked]) -> None:
        """Nobody of the model who waits has come earlier, priority counted, than the first of the batch."""
        model = started[0].part.method.model
        first_s = min(asked.rank_s for asked in started)
        for asked in self.asked:
            if asked.started_s is None and not asked.task.done() and asked.part.method.model == model:
                assert asked.rank_s >= first_s

    def _ended(self, asked: Asked, _: object) -> None:
        asked.ended_s = self.loop.now_s

    def check(self) -> None:
        for number, asked in enumerate(self.asked):
            assert asked.task.done()
            if asked.task.cancelled():
                continue
            error = asked.task.exception()
            if isinstance(error, Overloaded):
                assert asked.started_s is None
            elif isinstance(error, DeadlineExceeded):
                assert not asked.sure, "a promise was broken"
            else:
                (result,) = asked.task.result()
                assert result.outputs[0].tolist() == [2 * number] * asked.part.rows
                assert asked.ended_s is not None
                assert asked.ended_s <= asked.part.deadline_s


async def play(seed: int, loop: ManualLoop) -> World:
    draw = random.Random(seed)
    loop.now_s = 0.0
    world = World(draw, loop, gather_s=draw.choice([0.0, 0.0, 0.003]), patient=draw.random() < 0.3)
    for _ in range(draw.randint(5, 25)):
        kind = draw.random()
        if kind < 0.75:
            await world.ask()
        elif kind < 0.8:
            await world.leave()
        else:
            await world.pass_until(loop.now_s + draw.choice([0.0005, 0.004, 0.02]))
    await world.pass_until(loop.now_s + 10.0)
    assert not world.batcher.waiting(), "drained, everybody has an answer"
    world.check()
    return world


CHUNK = 1000
CHUNKS = [range(start, start + CHUNK) for start in range(0, SCHEDULES, CHUNK)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CHUNKS, ids=str)
def test_every_promise_is_kept_and_everybody_gets_one_answer(seeds: range) -> None:
    async def run() -> list[World]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualLoop)
        return [await play(seed, loop) for seed in seeds]

    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        worlds = runner.run(run())
    asked = list(itertools.chain.from_iterable(world.asked for world in worlds))
    answered = sum(not one.task.cancelled() and one.task.exception() is None for one in asked)
    refused = sum(not one.task.cancelled() and isinstance(one.task.exception(), Overloaded) for one in asked)
    assert answered > 5 * len(seeds)
    assert refused > len(seeds) / 2
