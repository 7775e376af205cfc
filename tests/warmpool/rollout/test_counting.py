"""What is counted of two versions, from requests and batches as an instance tells of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from tests.warmpool.served import doubling, part
from warmpool.batches import Batch
from warmpool.dataplane import Answer, DataPlane
from warmpool.errors import BadInput, Cancelled, DeadlineExceeded, LaneFailed, NotWarm, Overloaded
from warmpool.manifest import Serving
from warmpool.rollout import counting
from warmpool.rollout.counting import Counting, Watched
from warmpool.rollout.record import record_path, spec_of
from warmpool.rollout.tally import Counts
from warmpool.selection import Candidate
from warmpool.tensors import Tensor

STABLE = doubling()
CANARY = dataclasses.replace(doubling(), version="2")
SERVING = Serving(stable="1", canary="2", share=0.5, mirror=1.0, changed_s=7.0)
INPUTS = {"x": Tensor.of("INT32", [1])}


@dataclass
class FakeLane:
    """A lane, as far as anybody looks."""

    name: str = "primary"
    state: str = "warm"
    pid: int | None = 1


class Scene:
    """A rollout of the model "tiny" under way."""

    def __init__(self, monkeypatch: Any) -> None:
        self.counting = Counting(cast("DataPlane", SimpleNamespace()))
        self.counting.watched["tiny"] = Watched.of("tiny", SERVING)
        self.memory_bytes = 0
        monkeypatch.setattr(counting, "own_bytes_of", lambda pid: self.memory_bytes)

    def counts(self, version: str) -> Counts:
        return self.counting.watched["tiny"].tally.of(version)

    def batch(self, method: Any, *, begun: bool = True) -> Batch:
        parts = [part(method, {"batch": 1}, [np.zeros(1, np.int32)])]
        batch = Batch(method, parts, Candidate(0, {"batch": 2}, 1.0), formed_ns=0, took_us=100.0)
        batch.begun = begun
        return batch


@pytest.fixture
def within(monkeypatch: Any) -> Callable[[Callable[[Scene], None]], None]:
    """Does something in a scene, within a running loop whose clock stands still."""

    def run(act: Callable[[Scene], None]) -> None:
        async def in_loop() -> None:
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "time", lambda: 1000.5, raising=False)
            act(Scene(monkeypatch))

        asyncio.run(in_loop())

    return run


FAILED = [NotWarm("not yet"), LaneFailed("twice"), DeadlineExceeded("late"), ZeroDivisionError()]
NOT_OURS = [BadInput("wrong"), Overloaded("too many"), Cancelled("gone"), None]


@pytest.mark.parametrize("error", [*FAILED, *NOT_OURS], ids=lambda error: type(error).__name__)
def test_what_the_service_fails_is_an_error_and_what_callers_do_is_nothing(
    within: Any, error: Exception | None
) -> None:
    def act(scene: Scene) -> None:
        scene.counting.answered(CANARY, INPUTS, None, error, 0.01)
        ours = error in FAILED
        assert (scene.counts("2").requests, scene.counts("2").errors) == (ours, ours)
        assert scene.counts("1") == Counts()

    within(act)


def test_an_answer_is_a_request_with_its_time_and_only_stable_s_is_mirrored(within: Any) -> None:
    def act(scene: Scene) -> None:
        offered: list[Any] = []
        scene.counting.mirror.offer = lambda *what: offered.append(what)  # type: ignore[method-assign]
        for method in (STABLE, CANARY):
            answer = Answer(method, {"y": np.array([2], np.int32)}, [], 1, 0)
            scene.counting.answered(method, INPUTS, answer, None, 0.01)
            counts = scene.counts(method.version)
            assert (counts.requests, counts.errors, counts.request_times["double"].total) == (1, 0, 1)
        ((answer, inputs, _),) = offered
        assert (answer.method, inputs) == (STABLE, INPUTS)

    within(act)


def test_of_each_model_the_share_that_is_asked_for_is_mirrored_whatever_comes_in_turns(within: Any) -> None:
    """Four models take turns, and each gives its two methods turns."""

    def act(scene: Scene) -> None:
        offered: Counter[tuple[str, int]] = Counter()
        models = [f"model {number}" for number in range(4)]
        for name in models:
            serving = msgspec.structs.replace(SERVING, mirror=0.25)
            scene.counting.watched[name] = Watched.of(name, serving)
        for place in range(400):
            for name in models:
                method = doubling(model=name)
                heard = (name, place % 2)
                scene.counting.mirror.offer = lambda *_, heard=heard: offered.update([heard])  # type: ignore[method-assign]
                answer = Answer(method, {"y": np.array([2], np.int32)}, [], 1, 0)
                scene.counting.answered(method, INPUTS, answer, None, 0.01)
        assert len(offered) == 8
        assert all(abs(count - 50) <= 3 for count in offered.values())

    within(act)


def test_other_models_are_not_counted(within: Any) -> None:
    def act(scene: Scene) -> None:
        other = doubling(model="other")
        scene.counting.answered(other, INPUTS, None, NotWarm("not yet"), 0.01)
        scene.counting.batch_ran(scene.batch(other), FakeLane())
        scene.counting.batch_failed(scene.batch(other), FakeLane(state="down"))
        assert scene.counts("1") == Counts()

    within(act)


def test_a_lane_that_dies_in_a_batch_crashed_and_a_batch_that_merely_fails_did_not(within: Any) -> None:
    def act(scene: Scene) -> None:
        scene.counting.batch_failed(scene.batch(CANARY), FakeLane(state="down"))
        scene.counting.batch_failed(scene.batch(CANARY), FakeLane())
        scene.counting.batch_failed(scene.batch(CANARY, begun=False), FakeLane(state="down"))
        assert (scene.counts("2").batches, scene.counts("2").crashes) == (3, 1)

    within(act)


def test_what_a_lane_grows_by_is_whose_batch_ran_unless_it_loaded_or_is_another(within: Any) -> None:
    def act(scene: Scene) -> None:
        lane = FakeLane()

        def ran(method: Any, memory_bytes: int) -> None:
            scene.memory_bytes = memory_bytes
            scene.counting.batch_ran(scene.batch(method), lane)

        ran(CANARY, 100)  # of the first nobody knows
        ran(CANARY, 130)
        ran(STABLE, 125)
        ran(doubling(model="other"), 500)
        ran(CANARY, 501)
        lane.state = "loading"
        ran(CANARY, 900)
        lane.state = "warm"
        ran(CANARY, 950)
        lane.pid = 2
        ran(CANARY, 2000)
        assert (scene.counts("1").grown_bytes, scene.counts("2").grown_bytes) == (-5, 31)
        assert scene.counts("2").run_times["double batch=2"].total == 6

    within(act)


@pytest.mark.parametrize("changed_s", [-1e300, 0.0, 1_796_043_531.0, 1e300])
def test_a_canary_of_which_nothing_is_said_is_judged_as_usual_whenever_it_came(changed_s: float) -> None:
    spec = spec_of(Serving(stable="1", canary="2", changed_s=changed_s))
    assert record_path("tiny", spec).startswith("rollouts/tiny/")
    assert (spec.bake_s, spec.numerics, spec.by_hand) == (600.0, "auto", False)
