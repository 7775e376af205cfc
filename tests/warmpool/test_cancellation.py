"""Any of several requests leave at any point: the others get their answers, and nothing stays behind.

A history of a few requests is played once undisturbed, and everything that its loop runs is counted. It is then played
again for each of these points and each subset of the requests, which leave there.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.warmpool.fake_lane import World
from tests.warmpool.served import doubling
from tests.warmpool.stepped_loop import TURNS_MAX, SteppedLoop, subsets
from warmpool.byte_budget import ByteBudget
from warmpool.caller import Caller
from warmpool.dataplane import Answer, DataPlane
from warmpool.errors import Cancelled, NotWarm
from warmpool.tensors import Tensor

DOUBLE = doubling()
ROWS_MAX = 1000
BYTES_MAX = 1 << 20
WAIT_S = 20.0
RUN_S = 1.0  # of a batch


@dataclass
class Story:
    """Requests for doubled numbers, some of whom leave at a point. `leave`: through its connection, or as a task."""

    loop: SteppedLoop
    leave: str
    gone: tuple[int, ...] = ()
    budget: ByteBudget = field(default_factory=lambda: ByteBudget(BYTES_MAX))
    callers: list[Caller] = field(default_factory=list)
    tasks: list[asyncio.Task[Answer]] = field(default_factory=list)
    wanted: list[list[int]] = field(default_factory=list)
    answers: list[weakref.ref[asyncio.Future[Any]]] = field(default_factory=list)

    def begin(self) -> None:
        self.world = World(ROWS_MAX)
        self.plane = DataPlane(self.world.batcher)
        queue = self.world.batcher.run

        async def run(parts: Any) -> Any:
            self.answers += [weakref.ref(part.answer) for part in parts]
            return await queue(parts)

        self.world.batcher.run = run  # type: ignore[method-assign]

    def ask(self, *values: int) -> None:
        caller = Caller()
        self.callers.append(caller)
        self.wanted.append([2 * value for value in values])
        self.tasks.append(self.loop.create_task(self._ask(caller, list(values))))

    async def _ask(self, caller: Caller, values: list[int]) -> Answer:
        """As a protocol does it."""
        given = Tensor.of("INT32", values)
        with self.budget.hold() as held:
            held.raise_to(given.nbytes)
            with caller:
                return await self.plane.infer(DOUBLE, {"x": given}, timeout_s=WAIT_S)

    def go(self) -> None:
        """Those who are to leave do."""
        for number in self.gone:
            if self.leave == "cancelled":
                self.tasks[number].cancel()
            else:
                self.callers[number].leave()

    def finish(self) -> None:
        """What runs is done after a while, and its lane takes the next batch."""
        for lane in (self.world.primary, self.world.cpu):
            if lane.batch:
                self.loop.now_s += RUN_S
                lane.finish()

    def play(self, act: Callable[[], object]) -> None:
        """One thing, and what follows: whoever left then has left the queue, and what waits does so for somebody."""
        self.loop.settle(act)
        waiting = self.world.batcher.waiting()
        assert self.world.batcher.rows_waiting == sum(part.rows for part in waiting)
        assert not any(part.answer.done() for part in waiting)
        if 0 < self.loop.at <= self.loop.steps:
            assert all(self.tasks[number].done() for number in self.gone)

    def play_on(self) -> None:
        """Let everything run to its end."""
        for _ in range(TURNS_MAX):
            if not (self.world.primary.batch or self.world.cpu.batch):
                break
            self.play(self.finish)


def shared(story: Story) -> None:
    """One runs, two share the next batch, and one has more rows than a batch."""
    story.world.primary.warms(DOUBLE, batch=1)
    story.world.primary.warms(DOUBLE, batch=4)
    for values in ([1], [2], [3, 4], [5, 6, 7, 8, 9, 10]):
        story.ask(*values)


def failing(story: Story) -> None:
    """A batch of several fails, and each is run again, alone."""
    story.world.primary.warms(DOUBLE, batch=4)
    for values in ([1], [2], [3], [4, 5]):
        story.ask(*values)


def dying(story: Story) -> None:
    """The lane dies in the middle of a batch, and the other one does what is left."""
    story.world.primary.warms(DOUBLE, batch=4)
    story.world.cpu.warms(DOUBLE, batch=4)
    for values in ([1], [2, 3], [4, 5, 6, 7, 8], [9]):
        story.ask(*values)


def cold(story: Story) -> None:
    """Nothing is warm when they come."""
    story.world.primary.plans(DOUBLE, {"batch": 8})
    for values in ([1], [2, 3], list(range(4, 14)), [14]):
        story.ask(*values)


def withdrawn(story: Story) -> None:
    """It turns out that what they ask for must not run, when some have begun and the parts of others wait."""
    story.world.primary.warms(DOUBLE, batch=4)
    for values in ([1], [2, 3, 4, 5], list(range(6, 16)), [16]):
        story.ask(*values)


def fail(story: Story) -> None:
    if story.world.primary.batch:
        story.world.primary.fail()


def die(story: Story) -> None:
    story.world.primary.die(stays_unknown=False)


def warm(story: Story) -> None:
    story.world.primary.warms(DOUBLE, batch=8)


def withdraw(story: Story) -> None:
    story.world.batcher.withdraw([DOUBLE], "it is damaged")


Act = Callable[[Story], None]
STORIES: dict[str, tuple[Act, ...]] = {
    "shared": (shared,),
    "failing": (failing, Story.finish, fail),
    "dying": (dying, Story.finish, die),
    "cold": (cold, warm),
    "withdrawn": (withdrawn, withdraw),
}


def played(name: str, leave: str, at: int = 0, gone: tuple[int, ...] = ()) -> Story:
    """A story to its end; those with these numbers leave at a point."""
    loop = SteppedLoop()
    story = Story(loop, leave, gone)
    loop.settle(story.begin)
    ask, *acts = STORIES[name]

    def begin() -> None:
        ask(story)
        loop.count(at, story.go)

    story.play(begin)
    for act in acts:
        story.play(partial(act, story))
    story.play_on()
    check(story, name)
    return story


def check(story: Story, name: str) -> None:
    for number, task in enumerate(story.tasks):
        assert task.done(), number
        if task.cancelled():
            assert (number in story.gone, story.leave) == (True, "cancelled")
        elif isinstance(task.exception(), Cancelled):
            assert (number in story.gone, story.leave) == (True, "left")
        elif isinstance(task.exception(), NotWarm):
            assert name == "withdrawn"
        else:
            assert task.result().outputs["y"].tolist() == story.wanted[number], number
    batcher = story.world.batcher
    assert (batcher.rows_waiting, batcher.waiting(), story.budget.held_bytes) == (0, [], 0)
    assert [lane.batch for lane in (story.world.primary, story.world.cpu)] == [None, None]
    assert asyncio.all_tasks(story.loop) == set()


@pytest.mark.parametrize("leave", ["cancelled", "left"])
@pytest.mark.parametrize("name", STORIES)
def test_whoever_leaves_wherever_the_others_are_answered_and_nothing_is_left(name, leave):
    undisturbed = played(name, leave)
    points, count = undisturbed.loop.steps, len(undisturbed.tasks)
    answers, complaints, left = list(undisturbed.answers), [undisturbed.loop.complaints], 0
    undisturbed.loop.close()
    del undisturbed
    assert points > 2 * count
    for at in range(1, points + 1):
        for gone in subsets(count):
            story = played(name, leave, at, gone)
            left += sum(task.cancelled() or isinstance(task.exception(), Cancelled) for task in story.tasks)
            answers += story.answers
            complaints.append(story.loop.complaints)  # some may come when it is forgotten
            story.loop.close()
            del story
    assert left > points, "most of them left before they had their answer"
    gc.collect()
    assert not any(complaints)
    assert [answer() for answer in answers if answer() is not None] == []
