"""A version may go while it is planned for a lane, in a thread: then the lane is not to hold it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.stored_version import executable, put, target
from warmpool.batcher import Batcher
from warmpool.catalog import Catalog, ServedModel, read_version
from warmpool.dataplane import DataPlane
from warmpool.holdings import Holdings
from warmpool.instance import Instance
from warmpool.load_plan import LoadPlan, plan_loads
from warmpool.manifest import encode, target_path, weights_path
from warmpool.plan_following import PlanFollowing
from warmpool.served_models import ServedModels
from warmpool.store_calls import StoreCalls

FINGERPRINT = Fingerprint({"platform": "a test's"})


class World:
    """A store with two versions of a model, of which the second is a canary, and a lane that has the first."""

    def __init__(self, folder: Path) -> None:
        self.store = SignedStore(LocalStore(folder), ANYONE)
        for version in ("1", "2"):
            put(self.store, "toy", version, weights=version.encode(), serving=version == "1")
            spec = executable(version * 64, minimum=True)
            self.store.put(target_path("toy", version, FINGERPRINT.digest), encode(target(spec)))
        self.dataplane = DataPlane(Batcher(10, lambda *_: None))
        self.dataplane.catalog = Catalog({"toy": self.read("1")}, {"toy/2": self.read("2")})
        self.held = Holdings()
        held = self.held
        self.lane = cast(
            "Any",
            SimpleNamespace(
                name="primary",
                held=held,
                load=held.begin,
                extend=held.extend,
                part_with=held.part_with,
                retire=held.retire,
                state="starting",
                started_ns=1,
                life=SimpleNamespace(restarts=0),
            ),
        )
        self.models = ServedModels(
            self.store, self.dataplane, [self.lane], cast("Any", SimpleNamespace(of=lambda _: None))
        )
        self.models.fingerprints["primary"] = FINGERPRINT
        self.following = PlanFollowing([self.lane], self.models, StoreCalls(), lambda: None)

    def read(self, version: str) -> ServedModel:
        return read_version(self.store, "toy", version)

    def plan(self, *models: ServedModel) -> LoadPlan:
        return plan_loads(self.store, models, FINGERPRINT, verified={}, ladder_only=False)

    def goes(self) -> None:
        """The canary is retired."""
        canary = self.dataplane.catalog.others["toy/2"]
        self.dataplane.withdraw(canary)
        self.dataplane.forget(canary)

    def comes_again(self) -> None:
        """It is retired, and taken up anew."""
        self.goes()
        self.dataplane.catalog.others["toy/2"] = self.read("2")

    def look(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Let the lane take up what is new; something happens while that is planned."""
        change = self.models.change

        def slowly(*arguments: Any) -> Any:
            found = change(*arguments)
            meanwhile()
            return found

        self.models.change = slowly  # type: ignore[method-assign,assignment]
        asyncio.run(self.following.look(self.lane))
        self.models.change = change  # type: ignore[method-assign]

    def holds(self) -> set[str]:
        assert self.held.load_plan is not None
        return {*self.held.load_plan.weights, *(one.message.version for one in self.held.load_plan.loadables.values())}

    def canary_is_planned(self) -> bool:
        methods = [self.held.loadable(number).method for number in self.held.of_version("toy/2")]
        return methods == [self.dataplane.catalog.others["toy/2"].methods["predict"]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_version_that_goes_while_it_is_planned_beside_others_is_not_held(world: World) -> None:
    world.held.begin(world.plan(world.dataplane.catalog.models["toy"]))
    world.look(world.goes)
    assert world.holds() == {"toy/1"}


def test_one_that_comes_again_meanwhile_is_held_as_what_it_is_now(world: World) -> None:
    world.held.begin(world.plan(world.dataplane.catalog.models["toy"]))
    world.look(world.comes_again)
    assert world.holds() == {"toy/1"}
    world.look()
    assert world.holds() == {"toy/1", "toy/2"}
    assert world.canary_is_planned()


def test_why_a_version_cannot_be_had_is_forgotten_with_it(world: World) -> None:
    world.store.delete(target_path("toy", "2", FINGERPRINT.digest))
    world.held.begin(world.plan(world.dataplane.catalog.models["toy"]))
    world.look()
    assert world.held.load_plan is not None
    assert set(world.held.load_plan.missing) == {"toy/2"}
    world.look(world.goes)
    assert world.held.load_plan.missing == {}


@pytest.mark.parametrize("what", ["goes", "comes_again"])
def test_a_version_that_goes_while_a_new_process_is_planned_is_not_held(world: World, what: str) -> None:
    plan = world.plan(*world.dataplane.catalog.versions.values())
    getattr(world, what)()
    instance = SimpleNamespace(
        models=world.models,
        underway=asyncio.Event(),
        upkeep=SimpleNamespace(notice=lambda: None),
        _starts=SimpleNamespace(planned=lambda *_: None),
        moved=lambda _: None,
    )
    Instance._planned(cast("Any", instance), world.lane, 1, 0, plan)
    assert world.holds() == {"toy/1"}


def test_a_model_whose_weights_turn_out_to_be_damaged_is_not_held(world: World) -> None:
    stable = world.dataplane.catalog.models["toy"]
    world.held.begin(world.plan(*world.dataplane.catalog.versions.values()))
    world.store.inner.put(weights_path(stable.manifest.weights.digest), b"another")

    async def verify() -> list[ServedModel]:
        return [model async for model in world.models.verify()]

    assert asyncio.run(verify()) == []
    assert world.holds() == {"toy/2"}


def test_a_lane_that_could_not_map_weights_before_they_were_verified_is_replaced_and_after_that_is_not(
    world: World,
) -> None:
    """A damaged copy is fetched again while the lane already maps: for a moment it is not there."""
    model = world.dataplane.catalog.models["toy"]
    world.held.begin(world.plan(model))
    world.held.mapped["toy/1"] = ""
    assert world.models.replaced(world.lane) == []  # nothing is verified yet
    world.models.identities["toy/1"] = world.models.verified(model)
    assert world.models.replaced(world.lane) == ["toy/1"]
    identity = world.models.identities["toy/1"]
    world.held.begin(plan_loads(world.store, [model], FINGERPRINT, verified={"toy/1": identity}, ladder_only=False))
    for mapped in ("", identity):
        world.held.mapped["toy/1"] = mapped
        assert world.models.replaced(world.lane) == []
    world.held.mapped["toy/1"] = "another"
    assert world.models.replaced(world.lane) == ["toy/1"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_lane_that_comes_up_again_loads_quietly_since_it_has_callers(world: World, restarts: int) -> None:
    world.lane.life.restarts = restarts

    async def planned() -> LoadPlan | Exception:
        told: asyncio.Future[LoadPlan | Exception] = asyncio.get_running_loop().create_future()
        world.models.plan(world.lane, told.set_result)
        return await told

    plan = asyncio.run(planned())
    assert isinstance(plan, LoadPlan)
    assert plan.quietly == bool(restarts)
