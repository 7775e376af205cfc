"""How often an instance looks at the records of rollouts, and for how long alerts wait; the test moves the clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.fake_lane import manual_clock, pass_s
from tests.warmpool.rollout.test_controller import PATH, SERVING, FakeVersions
from warmpool import metrics
from warmpool.manifest import Serving
from warmpool.rollout.controller import SUPPRESS_S, Rollouts
from warmpool.rollout.record import Event, Rollout, add_event
from warmpool.store_calls import StoreCalls

STEP_S = 0.05
STABLE = Serving(stable="1")


class AtOnce(StoreCalls):
    """Asks a store without a thread: no time passes meanwhile."""

    async def ask[R](self, what: str, call: Callable[[], R]) -> R | None:
        return call()


class Looked(LocalStore):
    """Counts what is read, by path."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        self.reads[path] += 1
        return super().get(path, bytes_max=bytes_max)


class World:
    """The rollouts of one instance, before a store that is, or is not, on a network."""

    def __init__(self, folder: Path, *, far: bool) -> None:
        self.bottom = Looked(folder / "store")
        self.versions = FakeVersions()
        self.versions.serving["toy"] = STABLE
        store, dataplane = SignedStore(self.bottom, ANYONE), cast("Any", SimpleNamespace())
        self.rollouts = Rollouts.of(store, dataplane, self.versions, self.versions.state, AtOnce(), lambda: far)

    @property
    def looks(self) -> int:
        """At all records."""
        return sum(count for path, count in self.bottom.reads.items() if path.startswith("rollouts/"))

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            await pass_s(STEP_S)

    def active(self) -> float | None:
        """As Prometheus reads it, None for no such series."""
        families = metrics._of_rollouts(cast("Any", SimpleNamespace(rollouts=self.rollouts)))
        (family,) = (one for one in families if one.name == "warmpool_rollout_active")
        return next((sample.value for sample in family.samples if sample.labels == {"model": "toy"}), None)


@contextlib.asynccontextmanager
async def world(folder: Path, *, far: bool) -> AsyncIterator[World]:
    one = World(folder, far=far)
    running = asyncio.get_running_loop().create_task(one.rollouts.run())
    try:
        yield one
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@manual_clock
async def test_a_record_in_a_bucket_is_read_twice_a_second_while_there_is_a_canary_and_else_never(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, far=True) as one:
        await one.pass_s(10.0)
        assert one.looks == 0
        one.versions.serving["toy"] = SERVING
        await one.pass_s(10.0)
        assert 15 <= one.bottom.reads[PATH] == one.looks <= 20
        one.versions.serving["toy"] = STABLE
        await one.pass_s(1.0)
        before = one.looks
        await one.pass_s(10.0)
        assert one.looks == before


@pytest.mark.parametrize("far", [False, True], ids=["folder", "bucket"])
def test_what_others_took_back_gets_nothing_more_half_a_second_later(tmp_path: Path, *, far: bool) -> None:
    """Whenever that is between two looks."""

    @manual_clock
    async def story() -> None:
        for number in range(12):
            serving = msgspec.structs.replace(SERVING, canary=f"2.{number}")
            async with world(tmp_path / str(number), far=far) as one:
                one.versions.serving["toy"] = serving
                await one.pass_s(2.0 + number * STEP_S)
                assert one.versions.overrule("toy", serving) == serving
                rollout = Rollout(model="toy", stable="1", canary=serving.canary)
                add_event(one.bottom, PATH, rollout, Event(what="rollback", time_s=1.0, who="ada"))
                await one.pass_s(0.6)
                assert one.versions.overrule("toy", serving).canary == ""
                assert [each.canary for each in one.versions.followed] == [""]

    story()


@manual_clock
async def test_alerts_wait_during_a_rollout_and_a_while_after_it_and_then_no_more(tmp_path: Path) -> None:
    async with world(tmp_path, far=False) as one:
        await one.pass_s(1.0)
        assert not one.active()
        one.versions.serving["toy"] = SERVING
        await one.pass_s(SUPPRESS_S + 10.0)
        assert one.active() == 1, "however long it takes"
        one.versions.serving["toy"] = STABLE
        await one.pass_s(SUPPRESS_S - 1.0)
        assert one.active() == 1
        await one.pass_s(1.5)
        assert one.active() == 0
        one.versions.serving["toy"] = SERVING
        await one.pass_s(1.0)
        assert one.active() == 1
