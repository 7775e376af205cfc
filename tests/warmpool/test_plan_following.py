"""Lanes take up a plan that has changed in the store, and give up the old one, while requests are answered."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cache.errors import StoreUnavailable
from cache.local_store import LocalStore
from tests.instance_process import InstanceProcess, inferred, tensors, wait_until
from tests.tiny import METHODS
from tests.warmpool.served import doubling
from warmpool.catalog import ServedMethod
from warmpool.lanes import LaneProxy
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.manifest import ExecutableSpec, PlanSpec, Target, bucket_name, encode
from warmpool.plan_following import LOOKS_MAX, PlanFollowing
from warmpool.selection import Candidate
from warmpool.store_calls import StoreCalls
from warmpool.traffic_record import read_records

DOUBLE = doubling()


def loadable(number: int) -> Loadable:
    return cast(
        "Loadable",
        SimpleNamespace(method=DOUBLE, candidate=Candidate(number, {"batch": number}, 1.0), title=f"{number}"),
    )


class Lane:
    """The part of LaneProxy that following uses: its executables are in the states that the test says."""

    name = "primary"

    def __init__(self, *numbers: int) -> None:
        self.load_plan: LoadPlan | None = LoadPlan(
            end=len(numbers), loadables={number: loadable(number) for number in numbers}, missing={"other": "it is not"}
        )
        self.states = dict.fromkeys(numbers, "warm")
        self.extended: list[LoadPlan] = []
        self.retired: list[int] = []

    @property
    def held(self) -> Lane:
        """It is its own `Holdings`."""
        return self

    def state(self, number: int) -> str:
        return self.states[number]

    def extend(self, plan: LoadPlan) -> None:
        assert self.load_plan is not None
        self.extended.append(plan)
        self.load_plan.loadables |= plan.loadables
        self.load_plan.end = plan.end
        self.states |= dict.fromkeys(plan.loadables, "loading")

    def retire(self, numbers: list[int]) -> None:
        assert self.load_plan is not None
        self.retired += numbers
        for number in numbers:
            del self.load_plan.loadables[number]


class Models:
    """Says what a lane is to have besides, and what not, as the test does."""

    def __init__(self) -> None:
        self.new = 0
        self.absent = False
        self.gone: tuple[int, ...] = ()
        self.away = False
        self.asked: list[Collection[str] | None] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def change(
        self, lane: LaneProxy, having: Mapping[int, Loadable], further: LoadPlan, only: Collection[str] | None = None
    ) -> dict[ServedMethod, tuple[int, ...]]:
        self.asked.append(only)
        self.meanwhile()
        if self.away:
            raise StoreUnavailable("the store is away")
        assert further.missing == {"other": "it is not"}
        for _ in range(self.new - len(having) + len(self.gone)):
            further.loadables[further.end] = loadable(further.end)
            if self.absent:
                further.absent[further.end] = "nothing is stored"
            further.end += 1
        return {DOUBLE: tuple(number for number in self.gone if number in having)} if self.gone else {}

    def part_with_gone(self, lane: LaneProxy) -> None: ...


class World:
    def __init__(self, *numbers: int) -> None:
        self.lane, self.models = Lane(*numbers), Models()
        self.noticed = 0
        self.models.new = len(numbers)
        self.following = PlanFollowing([cast("LaneProxy", self.lane)], self.models, StoreCalls(), self._notice)

    def _notice(self) -> None:
        self.noticed += 1

    def look(self) -> bool:
        return asyncio.run(self.following.look(cast("LaneProxy", self.lane)))


def test_while_the_plan_is_the_same_nothing_happens() -> None:
    world = World(0, 1)
    world.look()
    assert (world.lane.extended, world.lane.retired) == ([], [])


@pytest.mark.parametrize("ready", ["warm", "evicted"])
def test_what_is_planned_no_more_goes_once_what_is_new_is_ready(ready: str) -> None:
    world = World(0, 1)
    world.models.gone, world.models.new = (0,), 2
    world.look()
    assert list(world.lane.extended[0].loadables) == [2], "numbers go on where the lane's own end"
    world.models.new = 3 - 1
    for state in ("loading", "cold", "marked"):
        world.lane.states[2] = state
        world.look()
        assert world.lane.retired == []
    world.lane.states[2] = ready
    world.look()
    assert (world.lane.retired, len(world.lane.extended)) == ([0], 1)


def test_what_is_new_and_lost_from_the_store_is_noticed_and_nothing_goes_for_it() -> None:
    world = World(0, 1)
    world.models.gone, world.models.new, world.models.absent = (0,), 2, True
    world.look()
    assert (world.noticed, world.lane.retired) == (1, [])


def test_while_the_store_is_away_nothing_changes() -> None:
    world = World(0, 1)
    world.models.gone, world.models.away = (0,), True
    assert not world.look()
    assert (world.lane.extended, world.lane.retired) == ([], [])


@pytest.mark.parametrize("change", ["process", "executables"])
def test_an_answer_that_is_about_another_process_or_other_executables_is_not_used_and_asked_for_again(
    change: str,
) -> None:
    world = World(0, 1)
    world.models.gone = (0,)
    missing = {"other": "it is not"}

    def meanwhile() -> None:
        plan = world.lane.load_plan
        assert plan is not None
        if len(world.models.asked) > 1:
            world.models.gone, world.models.new = (), len(plan.loadables) + 1
        elif change == "process":
            world.lane.load_plan = LoadPlan(end=7, loadables={0: loadable(0)}, missing=missing)
        else:
            plan.loadables[9] = loadable(9)
            world.lane.states[9] = "warm"

    world.models.meanwhile = meanwhile
    assert world.look()
    assert len(world.models.asked) == 2
    assert [list(plan.loadables) for plan in world.lane.extended] == [[7 if change == "process" else 2]]
    assert world.lane.retired == []


def test_a_lane_that_has_not_said_what_it_is_has_no_plan_to_change() -> None:
    world = World(0)
    world.lane.load_plan = None
    assert not world.look()
    assert world.lane.extended == []


def test_a_lane_that_changes_all_the_time_is_left_to_another_look() -> None:
    world = World(0, 1)

    def meanwhile() -> None:
        assert world.lane.load_plan is not None
        number = 10 + len(world.models.asked)
        world.lane.load_plan.loadables[number] = loadable(number)

    world.models.meanwhile = meanwhile
    assert not world.look()
    assert (len(world.models.asked), world.lane.extended) == (LOOKS_MAX, [])


# With real processes

SOME = ({"batch": 1, "seq": 16}, {"batch": 8, "seq": 16}, {"batch": 2, "seq": 8})


class Serving(InstanceProcess):
    """An instance that looks at its store often."""

    command = (sys.executable, "-m", "tests.warmpool.odd_instance")


def target_file(store: Path) -> Path:
    (found,) = (store / "models" / "tiny" / "1" / "targets").glob("*.json")
    return found


def plan_tokens(store: Path, buckets: tuple[dict[str, int], ...]) -> Target:
    """Let the method have these buckets alone, of those that were compiled; the target as it was."""
    before = msgspec.json.decode(target_file(store).read_bytes(), type=Target)

    def planned(spec: ExecutableSpec) -> bool:
        return spec.method != "tokens" or spec.bucket in buckets

    plan = PlanSpec(buckets=buckets, fitted_s=1.0, observations=1.0)
    after = msgspec.structs.replace(
        before, executables=tuple(filter(planned, before.executables)), plans={"tokens": plan}
    )
    replace(store, after)
    return before


def replace(store: Path, target: Target) -> None:
    unfinished = store.with_name("target")
    unfinished.write_bytes(encode(target))
    unfinished.replace(target_file(store))


def ids(rows: int, length: int) -> dict[str, Any]:
    return {"ids": [[1] * length] * rows, "mask": [[1] * length] * rows}


def test_an_instance_follows_a_plan_and_back_and_no_request_waits_or_fails(own_store: Path, tmp_path: Path) -> None:
    every = len(METHODS["tokens"].buckets)
    assert every == 12
    with Serving(own_store, tmp_path / "log") as instance:
        instance.wait_warm()

        def warm(lane: str) -> int:
            return int(instance.lane(lane)["warm"])

        def bucket(rows: int, length: int) -> str:
            return str(instance.infer("tokens", **ids(rows, length)).parameters["bucket"])

        whole, ladder = warm("primary"), warm("cpu")
        wrong: list[Any] = []
        answered = itertools.count()
        stopping = threading.Event()

        def ask() -> None:
            for rows, length in itertools.cycle(itertools.product((1, 2, 3, 7), (2, 7, 12))):
                if stopping.is_set():
                    return
                reply = instance.infer_reply("tiny:tokens", tensors("tokens", ids(rows, length)))
                if reply.status != 200 or inferred(reply).outputs["total"].tolist() != [length] * rows:
                    wrong.append((rows, length, reply))
                next(answered)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            before = plan_tokens(own_store, SOME)
            wait_until(lambda: warm("primary") == whole - every + len(SOME))
            assert {bucket(1, 3), bucket(2, 8), bucket(3, 3)} <= set(map(bucket_name, SOME))
            replace(own_store, before)
            wait_until(lambda: warm("primary") == whole)
            assert warm("cpu") == ladder
        finally:
            stopping.set()
            asking.join(30)
        assert wrong == []
        assert "lane is to hold more" in instance.log
        assert "executables are planned no more" in instance.log

    (record,), problems = read_records(LocalStore(own_store), "tiny")
    counted = record.methods["tokens"]
    assert problems == {}
    assert counted.dims == ("batch", "seq")
    assert counted.requests.seen == next(answered) + 3
    assert {(1, 3), (7, 12)} <= set(counted.requests.shapes)
    assert sum(counted.batches.weights) == pytest.approx(counted.requests.seen, rel=0.3), "few ran together"
