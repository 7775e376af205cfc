"""The steps by which a version comes and goes, with lanes and a store that do what the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.errors import StoreUnavailable
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.fake_lane import World as Lanes
from tests.warmpool.line_versions import serve
from tests.warmpool.served import doubling
from tests.warmpool.stored_version import put
from warmpool import version_following
from warmpool.batcher import Batcher
from warmpool.catalog import Catalog, ServedModel, read_version
from warmpool.dataplane import DataPlane
from warmpool.errors import NotFound, NotWarm
from warmpool.instance import Instance
from warmpool.manifest import Serving
from warmpool.repository import Repository
from warmpool.scheduling.cost_model import CostModel
from warmpool.selection import Candidate
from warmpool.store_calls import StoreCalls
from warmpool.traffic import Traffic
from warmpool.version_following import VersionFollowing
from warmpool.version_routing import NOTHING_WISHED, Wish

WAIT_S_MAX = 60.0


class World:
    """A store, a data plane whose stable version is 1, and a following whose lanes are warm of what the test says."""

    def __init__(self, folder: Path) -> None:
        self.store = SignedStore(LocalStore(folder / "store"), ANYONE)
        for version in ("1", "2", "3"):
            put(self.store, "toy", version, serving=False)
        serve(self.store, "1", "toy")
        self.dataplane = DataPlane(Batcher(10, lambda *_: None))
        self.dataplane.catalog = Catalog({"toy": read_version(self.store, "toy", "1")})
        self.warm = {"toy/1"}
        self.busy: set[Any] = set()
        self.parted: list[str] = []
        self.taken: list[str] = []
        self.planned: list[set[str]] = []
        self.refuses: dict[str, str] = {}
        self.hold: dict[str, threading.Event] = {}
        self.lane = lane = SimpleNamespace(
            name="primary",
            methods=self.busy,
            part_with=self.parted.append,
            held=SimpleNamespace(load_plan=None),
        )
        self.following = VersionFollowing(
            self.store, self.dataplane, cast("Any", [lane]), cast("Any", self), cast("Any", self), StoreCalls()
        )
        self.repository = Repository(self.following, self.dataplane, cast("Any", [lane]))
        self.following.is_warm = lambda model: model.key in self.warm  # type: ignore[method-assign]
        self.far = False

    # As the models of an instance, and what lets lanes load them

    def take_up(self, name: str, version: str) -> ServedModel | str:
        key = f"{name}/{version}"
        self.taken.append(key)
        if key in self.hold:
            assert self.hold[key].wait(WAIT_S_MAX)
        return self.refuses.get(key) or read_version(self.store, name, version)

    def part_with(self, model: ServedModel) -> None: ...

    async def look(self, _: Any, only: set[str]) -> None:
        self.planned.append(only)

    # What the test sees

    def stable(self) -> str:
        return self.dataplane.choose("toy", NOTHING_WISHED).version

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while not condition():  # noqa: ASYNC110  what threads bring about
                await asyncio.sleep(0.001)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    """Runs a story with a world whose following runs, and looks often."""
    monkeypatch.setattr(version_following, "LOOK_NEAR_S", 0.002)
    monkeypatch.setattr(version_following, "LOOK_S_MIN", 0.001)

    def tell(story: Callable[[World], Awaitable[None]]) -> None:
        async def told_while_it_follows() -> None:
            world = World(tmp_path)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(world.following.run())
                await world.until(lambda: world.following.looks > 1)
                await story(world)
                task.cancel()

        asyncio.run(told_while_it_follows())

    return tell


Tell = Callable[[Callable[[World], Awaitable[None]]], None]


def test_a_version_gets_nothing_before_it_is_fully_warm_and_then_all_of_it(told: Tell) -> None:
    async def story(world: World) -> None:
        serve(world.store, "2", "toy", previous="1")
        await world.until(lambda: "toy/2" in world.dataplane.catalog.others)
        looks = world.following.looks
        await world.until(lambda: world.following.looks > looks + 3)
        assert world.stable() == "1"
        with pytest.raises(NotWarm, match="version '2' of 'toy' is not fully warm yet"):
            world.dataplane.choose("toy", Wish("2"))
        world.warm.add("toy/2")
        await world.until(lambda: world.stable() == "2")
        assert world.dataplane.choose("toy", Wish("1")).version == "1"
        assert world.parted == []

    told(story)


def test_what_an_instance_has_written_itself_is_not_undone_by_a_read_that_began_before(told: Tell) -> None:
    async def story(world: World) -> None:
        serve(world.store, "1", "toy", canary="2", share=1.0)
        world.warm.add("toy/2")
        await world.until(lambda: world.stable() == "2")
        began, go_on = threading.Event(), threading.Event()
        read = world.following._records.read

        def slowly() -> dict[str, Serving | str]:
            found = read()
            began.set()
            assert go_on.wait(WAIT_S_MAX)
            return found

        world.following._records.read = slowly  # type: ignore[method-assign]
        await world.until(began.is_set)
        serve(world.store, "1", "toy")
        world.following.follow("toy", Serving(stable="1"))
        assert world.stable() == "1", "at once"
        looks = world.following.looks
        world.following._records.read = read  # type: ignore[method-assign]
        go_on.set()
        await world.until(lambda: world.following.looks > looks)
        assert world.following.serving["toy"] == Serving(stable="1")

    told(story)


def test_a_version_that_takes_long_to_read_keeps_nothing_else_waiting(told: Tell) -> None:
    async def story(world: World) -> None:
        world.hold["toy/3"] = threading.Event()
        serve(world.store, "1", "toy", canary="3")
        await world.until(lambda: world.taken == ["toy/3"])
        world.warm.add("toy/2")
        serve(world.store, "2", "toy", canary="3")
        await world.until(lambda: world.stable() == "2")
        assert world.taken == ["toy/3", "toy/2"], "and it is read once at a time"
        serve(world.store, "2", "toy")
        await world.until(lambda: "toy/3" not in world.following._wanted())
        world.hold["toy/3"].set()
        await world.until(lambda: not world.following._under_way)
        assert "toy/3" not in world.dataplane.catalog.versions, "nobody wants it any more"

    told(story)


def test_what_is_refused_is_tried_again_less_and_less_often_until_somebody_says_that_the_store_has_changed(
    told: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        world.refuses["toy/2"] = "it is not whole"
        monkeypatch.setattr(version_following, "TRY_AGAIN_S_MAX", 3600.0)
        serve(world.store, "2", "toy")
        await world.until(lambda: len(world.taken) == 5)
        assert world.following.refused == {"toy/2": "it is not whole"}
        rest = world.following._rests["toy/2"]
        rest.until_s += 3600.0
        looks = world.following.looks
        await world.until(lambda: world.following.looks > looks + 20)
        assert len(world.taken) == 5
        world.following.changed()
        await world.until(lambda: len(world.taken) > 5)
        del world.refuses["toy/2"]
        world.following.changed()
        await world.until(lambda: "toy/2" in world.dataplane.catalog.others)
        assert world.following.refused == {}

    told(story)


def test_a_version_that_is_retired_goes_once_nothing_of_it_runs(told: Tell) -> None:
    async def story(world: World) -> None:
        world.warm.add("toy/2")
        serve(world.store, "1", "toy", canary="2")
        await world.until(lambda: world.dataplane.warm["toy"] == {"1", "2"})
        method = world.dataplane.choose("toy", Wish("2"))
        world.busy.add(method)
        serve(world.store, "1", "toy")
        await world.until(lambda: world.dataplane.catalog.retiring)
        with pytest.raises(NotFound, match="version '2' of 'toy' is not served; served: 1"):
            world.dataplane.choose("toy", Wish("2"))
        looks = world.following.looks
        await world.until(lambda: world.following.looks > looks + 3)
        assert world.parted == []
        assert "toy/2" in world.dataplane.catalog.versions, "a lane that starts anew is to have it"
        world.busy.clear()
        await world.until(lambda: world.parted == ["toy/2"])
        assert list(world.dataplane.catalog.versions) == ["toy/1"]
        assert world.dataplane.catalog.retiring == set()

    told(story)


@pytest.fixture
def rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Runs a story with a world whose following looks at a bucket, and hardly ever by itself; nobody has looked yet."""
    monkeypatch.setattr(version_following, "LOOK_FAR_S", 3600.0)
    monkeypatch.setattr(version_following, "LOOK_S_MIN", 0.001)

    def tell(story: Callable[[World], Awaitable[None]]) -> None:
        async def told_while_it_follows() -> None:
            world = World(tmp_path)
            world.far = True
            async with asyncio.TaskGroup() as group:
                task = group.create_task(world.following.run())
                await story(world)
                task.cancel()

        asyncio.run(told_while_it_follows())

    return tell


def test_while_the_stable_version_is_loaded_again_its_canary_gets_none_of_what_is_meant_for_it(told: Tell) -> None:
    async def story(world: World) -> None:
        following, catalog = world.following, world.dataplane.catalog
        world.warm.add("toy/2")
        serve(world.store, "1", "toy", canary="2", share=0.5)
        await world.until(lambda: world.dataplane.warm["toy"] == {"1", "2"})
        following.unloaded.add("toy")
        following.settle()
        assert catalog.versions == {}
        world.hold["toy/1"] = threading.Event()
        world.warm.discard("toy/1")
        following.unloaded.discard("toy")
        following.changed()
        await world.until(lambda: "toy/2" in catalog.others)
        following.settle()
        for _ in range(4):
            with pytest.raises(NotWarm, match="the stable version of model 'toy' is not here yet"):
                world.stable()
        world.hold["toy/1"].set()
        await world.until(lambda: "toy/1" in catalog.others)
        following.settle()
        assert {world.stable() for _ in range(4)} == {"1"}, "it is waited for"
        world.warm.add("toy/1")
        following.settle()
        assert [world.stable() for _ in range(4)] == ["1", "2", "1", "2"]

    told(story)


def test_a_new_process_is_told_of_what_is_not_stable_without_waiting_for_the_next_look(rarely: Tell) -> None:
    async def story(world: World) -> None:
        serve(world.store, "1", "toy", canary="2")
        await world.until(lambda: "toy/2" in world.dataplane.catalog.others and world.following.looks == 2)
        assert world.planned == []
        world.lane.held.load_plan = SimpleNamespace(weights={"toy/1": None}, missing={})
        world.following.moved()
        await world.until(lambda: world.planned == [{"toy/2"}])

    rarely(story)


def test_a_load_from_a_bucket_waits_for_no_look_that_comes_by_itself(rarely: Tell) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: world.following.looks == 1)
        await world.repository.load("toy", WAIT_S_MAX)
        assert world.following.looks >= 3, "the first may have begun before it was asked for"

    rarely(story)


def test_a_load_is_not_over_while_the_store_is_away(told: Tell) -> None:
    async def story(world: World) -> None:
        away: list[None] = []

        def read() -> dict[str, Serving | str]:
            away.append(None)
            raise StoreUnavailable("it is away")

        world.following._records.read = read  # type: ignore[method-assign]
        await world.until(lambda: len(away) == 2)
        looks = world.following.looks
        with pytest.raises(NotWarm, match="model 'toy' is not warm yet"):
            await world.repository.load("toy", 0.1)
        await world.until(lambda: len(away) > 5)
        assert world.following.looks == looks

    told(story)


def test_a_load_of_what_the_store_says_nothing_readable_of_says_so(rarely: Tell) -> None:
    async def story(world: World) -> None:
        world.store.inner.put("models/toy/serving.json", b"{\n")
        with pytest.raises(NotWarm, match="cannot be served: what the store says of it cannot be read"):
            await world.repository.load("toy", WAIT_S_MAX)

    rarely(story)


def test_when_a_lane_dies_it_is_decided_anew_who_gets_requests() -> None:
    told: list[str] = []
    instance = SimpleNamespace(
        rollouts=None,
        settled=asyncio.Event(),
        versions=SimpleNamespace(moved=lambda: told.append("versions")),
        batcher=SimpleNamespace(failed=lambda *_, **__: told.append("batcher")),
        _starts=SimpleNamespace(died=lambda _: None),
        _start_cpu_lane=lambda: None,
    )
    Instance.failed(cast("Any", instance), cast("Any", SimpleNamespace(state="down", name="primary")), None, "it died")
    assert told == ["versions", "batcher"]


def test_the_stable_version_serves_on_whatever_is_named_in_its_place(told: Tell) -> None:
    async def story(world: World) -> None:
        world.refuses["toy/3"] = "it is not whole"
        serve(world.store, "3", "toy")
        await world.until(lambda: "toy/3" in world.following.refused)
        world.store.inner.put("models/toy/serving.json", b"{\n")
        looks = world.following.looks
        await world.until(lambda: world.following.looks > looks + 3)
        world.store.inner.delete("models/toy/serving.json")
        looks = world.following.looks
        await world.until(lambda: world.following.looks > looks + 3)
        assert (world.stable(), world.parted, world.dataplane.catalog.problems) == ("1", [], {})

    told(story)


def test_a_method_that_is_forgotten_leaves_nothing_in_a_lanes_queue() -> None:
    async def story() -> None:
        lanes, gone, stays = Lanes(), doubling("gone"), doubling("stays")
        costs = CostModel()
        lanes.primary.costs = lanes.cpu.costs = cast("Any", costs)
        queue = next(iter(lanes.batcher._queues.values()))
        for method in (gone, stays):
            candidate = Candidate(1, {"batch": 1}, 10.0)
            queue.waiting.set_warm(method, [candidate])
            queue._warm[method] = [candidate]
            queue.waiting.grids.ran_s[method][candidate] = 1.0
            costs.observe(method, candidate, 20.0)
            assert queue.waiting.grids[method].rows_max == 1, "it is made when it is asked for"
        lanes.batcher.forget(gone)
        grids = queue.waiting.grids
        for known in (queue._warm, grids._grids, grids._candidates, grids.ran_s):
            assert set(known) == {stays}
        assert {method for method, _ in costs._buckets} == {stays}

    asyncio.run(story())


def test_what_was_counted_of_a_method_that_is_forgotten_stays() -> None:
    traffic, method = Traffic(), doubling("gone")
    traffic.saw(method, {"batch": 1})
    traffic.forget(method)
    traffic.forget(method)
    assert traffic._of == {}
    (record,) = traffic.records().values()
    assert record.methods["gone"].requests.seen == 1
