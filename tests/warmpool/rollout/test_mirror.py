"""Mirrored requests, on lanes that a test steps through."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.warmpool.fake_lane import World, manual_clock, rest
from tests.warmpool.served import doubling
from warmpool.catalog import ServedMethod
from warmpool.dataplane import Answer, DataPlane
from warmpool.errors import DeadlineExceeded
from warmpool.rollout import mirror
from warmpool.rollout.comparison import Compared, Rule
from warmpool.rollout.mirror import BYTES_MAX, WAITING_MAX, Mirror, Mirrored
from warmpool.tensors import Tensor

STABLE = doubling()
CANARY = dataclasses.replace(doubling(), version="2")
FINITE = Rule(None)
WAIT_S_MAX = 60.0


class Scene:
    """Two versions on one lane, and a mirror between them."""

    def __init__(self) -> None:
        self.world = World()
        for method in (STABLE, CANARY):
            self.world.primary.warms(method, batch=1)
        self.dataplane = DataPlane(self.world.batcher)
        self.mirror = Mirror(self.dataplane)
        self.told: list[Compared] = []
        self.running = asyncio.get_running_loop().create_task(self.mirror.run())

    async def answered(self, number: int) -> tuple[Answer, dict[str, Tensor]]:
        """Stable's answer to a request."""
        inputs = {"x": Tensor.of("INT32", [number])}
        asked = asyncio.get_running_loop().create_task(self.dataplane.infer(STABLE, inputs, timeout_s=1e6))
        await rest()
        self.world.primary.finish()
        return await asked, inputs

    def offer(self, answer: Answer, inputs: dict[str, Tensor], outputs: Any = None) -> None:
        shown = answer.outputs if outputs is None else outputs
        self.mirror.offer(answer, inputs, lambda: Mirrored(CANARY, inputs, shown, FINITE, self.told.append))

    async def until_told(self, count: int) -> None:
        """Wait for so many comparisons, which are made in a thread."""
        give_up_s = time.monotonic() + WAIT_S_MAX
        while len(self.told) < count:
            assert time.monotonic() < give_up_s
            await asyncio.sleep(0)

    @property
    def ran(self) -> list[ServedMethod]:
        return [batch.method for batch in self.world.primary.batches]


@manual_clock
async def test_the_canary_answers_after_stable_did_and_is_compared() -> None:
    scene = Scene()
    answer, inputs = await scene.answered(3)
    assert answer.outputs["y"].tolist() == [6]
    scene.offer(answer, inputs)
    scene.offer(answer, inputs, outputs={"y": np.zeros(2, np.int32)})
    for count in (1, 2):
        await rest()
        scene.world.primary.finish()
        await scene.until_told(count)
    assert scene.ran == [STABLE, CANARY, CANARY]
    assert scene.told == [Compared(), Compared(differing=True)]
    scene.running.cancel()


@manual_clock
async def test_nothing_is_mirrored_that_is_large_or_finds_the_queue_full() -> None:
    scene = Scene()
    answer, inputs = await scene.answered(3)
    asked = 0

    def to() -> None:
        nonlocal asked
        asked += 1

    scene.mirror.offer(answer, inputs, to)
    assert asked == 1
    half = {"x": Tensor("INT32", (BYTES_MAX // 8,), bytes(BYTES_MAX // 2))}
    for output_bytes, mirrored in ((BYTES_MAX // 2, 2), (BYTES_MAX // 2 + 1, 2), (BYTES_MAX + 1, 2)):
        answer.outputs["y"] = np.zeros(output_bytes, np.int8)
        scene.mirror.offer(answer, half, to)
        assert asked == mirrored
    answer.outputs["y"] = np.zeros(1, np.int32)
    scene.mirror.offer(answer, {"x": Tensor("INT32", (BYTES_MAX // 4,), bytes(BYTES_MAX))}, to)
    assert asked == 2
    for _ in range(WAITING_MAX + 9):
        scene.offer(answer, inputs)
    assert scene.mirror._waiting.qsize() == WAITING_MAX
    scene.running.cancel()


@manual_clock
async def test_callers_come_first() -> None:
    scene = Scene()
    answer, inputs = await scene.answered(3)
    blocker = await scene.world.ask(STABLE, [1])
    scene.offer(answer, inputs)
    await rest()
    later = asyncio.get_running_loop().create_task(scene.dataplane.infer(STABLE, inputs, timeout_s=1e6))
    await rest()
    for _ in range(3):
        scene.world.primary.finish()
        await rest()
    await scene.until_told(1)
    assert scene.ran == [STABLE, STABLE, STABLE, CANARY]
    assert (blocker.done(), later.done(), scene.told) == (True, True, [Compared()])
    scene.running.cancel()


@manual_clock
async def test_what_the_canary_cannot_answer_differs_and_what_there_was_no_time_for_says_nothing() -> None:
    scene = Scene()
    answer, inputs = await scene.answered(3)
    scene.offer(answer, inputs)
    await rest()
    for _ in range(2):  # twice is as often as anything is run
        scene.world.primary.fail()
        await rest()
    assert scene.told == [Compared(differing=True)]
    scene.world.primary.warm.pop(CANARY)
    scene.world.primary.plan.pop(CANARY)
    scene.world.batcher.changed()
    scene.offer(answer, inputs)
    await rest()
    assert scene.told == [Compared(differing=True)]  # it is not warm any more
    assert not scene.running.done()
    scene.running.cancel()


@manual_clock
async def test_whatever_a_mirrored_request_or_its_comparison_fails_with_the_next_one_is_mirrored(
    monkeypatch: Any,
) -> None:
    scene = Scene()
    answer, inputs = await scene.answered(3)

    def mistaken(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(scene.dataplane, "repeat", mistaken)
        scene.offer(answer, inputs)
        await scene.until_told(1)
    with monkeypatch.context() as patched:
        patched.setattr(mirror, "compared", mistaken)
        scene.offer(answer, inputs)
        await rest()
        scene.world.primary.finish()
        await scene.until_told(2)
    scene.offer(answer, inputs)
    await rest()
    scene.world.primary.finish()
    await scene.until_told(3)
    assert scene.told == [Compared(differing=True), Compared(differing=True), Compared()]
    scene.running.cancel()


@manual_clock
async def test_the_loop_goes_on_while_answers_are_compared(monkeypatch: Any) -> None:
    scene = Scene()
    answer, inputs = await scene.answered(3)
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> Compared:
        begun.set()
        assert go_on.wait(WAIT_S_MAX)
        return Compared()

    monkeypatch.setattr(mirror, "compared", slow)
    scene.offer(answer, inputs)
    await rest()
    scene.world.primary.finish()
    assert await asyncio.to_thread(begun.wait, WAIT_S_MAX)
    assert (await scene.answered(4))[0].outputs["y"].tolist() == [8]
    assert scene.told == []
    go_on.set()
    await scene.until_told(1)
    scene.running.cancel()


@manual_clock
async def test_a_mirrored_request_is_no_traffic_and_nobody_is_told_of_it() -> None:
    scene = Scene()
    heard: list[Any] = []
    scene.dataplane.answered = lambda *what: heard.append(what)
    answer, inputs = await scene.answered(3)
    seen: list[Any] = []
    scene.dataplane.traffic.saw = lambda *what: seen.append(what)  # type: ignore[method-assign]
    scene.offer(answer, inputs)
    await rest()
    scene.world.primary.finish()
    await scene.until_told(1)
    assert scene.told == [Compared()]
    assert (len(heard), seen) == (1, [])
    method, given, same, error, took_s = heard[0]
    assert (method, given, same, error, took_s >= 0) == (STABLE, inputs, answer, None, True)
    scene.running.cancel()


@manual_clock
async def test_of_a_request_that_fails_it_is_told_why_and_of_one_that_names_its_version_nothing() -> None:
    scene = Scene()
    heard: list[Any] = []
    scene.dataplane.answered = lambda *what: heard.append(what)
    inputs = {"x": Tensor.of("INT32", [1])}
    with pytest.raises(DeadlineExceeded):
        await scene.dataplane.infer(STABLE, inputs, timeout_s=-1.0)
    with pytest.raises(DeadlineExceeded):
        await scene.dataplane.infer(STABLE, inputs, timeout_s=-1.0, pinned=True)
    ((_, _, answer, error, _),) = heard
    assert (answer, type(error).__name__) == (None, "DeadlineExceeded")
    scene.running.cancel()
