"""What an instance decides of a rollout, on a folder as a store; who follows the store is a fake, traffic is counts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cache.audit import Audit
from cache.errors import StoreUnavailable
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE, Trust
from tests.warmpool.cared_store import SIGNER
from warmpool import manifest as stored
from warmpool.dataplane import DataPlane
from warmpool.manifest import RolloutSpec, Serving
from warmpool.rollout import controller
from warmpool.rollout.controller import Rollouts
from warmpool.rollout.counting import Watched
from warmpool.rollout.decisions import Decision, Told, promote
from warmpool.rollout.record import Event, Rollout, add_event, read_record, record_path
from warmpool.rollout.tally import Counts
from warmpool.store_calls import StoreCalls

SPEC = RolloutSpec(started_s=1000.0, bake_s=0.0, requests_min=1)
SERVING = Serving(stable="1", canary="2", share=0.25, mirror=0.5, changed_s=1000.0, rollout=SPEC)
PATH = record_path("toy", SPEC)
TRUST = Trust.of([SIGNER.public])
WAIT_S_MAX = 60.0


class FakeVersions:
    """Follows what it is told."""

    def __init__(self) -> None:
        self.serving: dict[str, Serving] = {}
        self.refused: dict[str, str] = {}  # by key
        self.followed: list[Serving] = []
        self.overrule: Callable[[str, Serving], Serving] = lambda _, serving: serving

    def state(self, key: str) -> tuple[str, str]:
        return ("refused", self.refused[key]) if key in self.refused else ("serving", "")

    def follow(self, name: str, serving: Serving) -> None:
        self.serving[name] = serving
        self.followed.append(serving)


@dataclass
class Scene:
    """One instance, and the store that it shares with others."""

    store: SignedStore
    rollouts: Rollouts
    versions: FakeVersions

    @property
    def served(self) -> Serving:
        return msgspec.json.decode(self.store.get(stored.serving_path("toy")), type=Serving)

    @property
    def watched(self) -> Watched:
        return self.rollouts.counting.watched["toy"]

    def look(self) -> None:
        """What is served is looked at, as an instance does all the time."""
        self.versions.serving["toy"] = self.versions.overrule("toy", self.served)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while not condition():  # noqa: ASYNC110  threads and files are waited for
                await asyncio.sleep(0.01)

    async def begun(self) -> None:
        self.look()
        await self.until(lambda: "toy" in self.rollouts.counting.watched and self.rollouts._known)
        self.look()

    def judge(self, seconds: int, **canary: int) -> None:
        """Let the judge have so many seconds, up to now, of ten requests a version."""
        now = int(asyncio.get_running_loop().time())
        for second in range(now - seconds, now):
            self.watched.judge.add(second, Counts(requests=10, batches=10), made(canary))


def made(numbers: dict[str, int]) -> Counts:
    counts = Counts(requests=10, batches=10, compared=10)
    for name, number in numbers.items():
        setattr(counts, name, number)
    return counts


@contextlib.asynccontextmanager
async def scene(folder: Any, trust: Trust = ANYONE, serving: Serving = SERVING) -> AsyncIterator[Scene]:
    bottom = LocalStore(folder / "store")
    signed = trust is not ANYONE
    writer = SignedStore(bottom, trust, SIGNER if signed else None)
    writer.put(stored.serving_path("toy"), stored.encode(serving))
    store = SignedStore(bottom, trust, None, audit=Audit(str(folder / "audit")))
    versions = FakeVersions()
    dataplane = cast("DataPlane", SimpleNamespace())
    rollouts = Rollouts.of(store, dataplane, versions, versions.state, StoreCalls(), lambda: False)
    running = asyncio.get_running_loop().create_task(rollouts.run())
    try:
        yield Scene(store, rollouts, versions)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def test_a_canary_gets_nothing_before_its_record_was_looked_at(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            assert one.versions.overrule("toy", SERVING) == msgspec.structs.replace(SERVING, share=0.0, mirror=0.0)
            await one.begun()
            assert one.versions.serving["toy"] == SERVING
            assert one.rollouts.is_active("toy")
            assert one.rollouts.status()["toy"]["verdict"] == "continue"

    asyncio.run(run())


def test_a_bad_canary_is_taken_back_here_at_once_and_in_the_store_with_its_figures(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            one.judge(40, errors=10)
            await one.until(lambda: one.versions.followed)
            first = one.versions.followed[0]
            assert (first.stable, first.canary) == ("1", "")
            await one.until(lambda: not one.served.canary)
            assert one.served.reason == "it fails more often than stable"
            record = read_record(one.store, PATH)
            assert record is not None
            assert record.decision is not None
            assert (record.state, record.decision.reason) == ("rolled back", one.served.reason)
            assert record.decision.figures["canary_errors"] == 400
            await one.until(lambda: not one.rollouts.counting.watched)
            assert one.rollouts.is_active("toy")  # for a while
            assert one.rollouts.decided == {("toy", "rollback"): 1}
        said = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert [(each["event"], each["version"], each["before"]) for each in said] == [("rollback", "1", "2")]

    asyncio.run(run())


def test_a_good_canary_is_made_stable_and_the_old_version_stays(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            one.judge(5)
            await one.until(lambda: one.served.stable == "2")
            assert (one.served.previous, one.served.canary) == ("1", "")
            await one.until(lambda: read_record(one.store, PATH))
            record = read_record(one.store, PATH)
            assert record is not None
            assert record.state == "promoted"
            await one.until(lambda: one.versions.serving["toy"] == one.served)

    asyncio.run(run())


def test_without_a_key_a_canary_is_taken_back_by_the_record_and_others_follow_that(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path, TRUST) as one:
            await one.begun()
            one.judge(40, errors=10)
            await one.until(lambda: (found := read_record(one.store, PATH)) and found.state == "rolled back")
            assert one.served.canary == "2"
            one.look()
            assert one.versions.serving["toy"].canary == ""
        async with scene(tmp_path, TRUST) as other:  # which saw nothing of it
            other.look()
            await other.until(lambda: other.versions.followed)
            assert [each.canary for each in other.versions.followed] == [""]
            other.look()
            assert other.versions.serving["toy"].canary == ""
            assert other.rollouts.decided == {}

    asyncio.run(run())


@pytest.mark.parametrize("why", ["by hand", "by who has a key"])
def test_what_may_not_promote_says_that_somebody_may(tmp_path: Any, why: str) -> None:
    spec = msgspec.structs.replace(SPEC, by_hand=why == "by hand")
    trust = ANYONE if why == "by hand" else TRUST

    async def run() -> None:
        async with scene(tmp_path, trust, msgspec.structs.replace(SERVING, rollout=spec)) as one:
            await one.begun()
            one.judge(5)
            await one.until(lambda: one.watched.waits)
            assert f"it may be promoted, {why}" in one.rollouts.status()["toy"]["reason"]
            assert one.served.canary == "2"

    asyncio.run(run())


def test_a_rollback_that_the_store_does_not_take_is_tried_until_it_does(tmp_path: Any, monkeypatch: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            put_if, refused = one.store.inner.put_if, asyncio.Event()
            loop = asyncio.get_running_loop()

            def away(*_: Any) -> str:
                loop.call_soon_threadsafe(refused.set)
                raise StoreUnavailable("it is away", told="it is away")

            monkeypatch.setattr(one.store.inner, "put_if", away)
            one.judge(40, errors=10)
            await one.until(refused.is_set)
            assert one.versions.serving["toy"].canary == ""  # here it counts already
            monkeypatch.setattr(one.store.inner, "put_if", put_if)
            await one.until(lambda: not one.served.canary)

    asyncio.run(run())


def test_what_is_tried_again_is_written_down_once(tmp_path: Any, monkeypatch: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            put_if, refused = one.store.inner.put_if, 0

            def away(path: str, *more: Any) -> str | None:
                nonlocal refused
                if path.startswith("models/") and refused < 2:
                    refused += 1
                    raise StoreUnavailable("it is away", told="it is away")
                return put_if(path, *more)

            monkeypatch.setattr(one.store.inner, "put_if", away)
            one.judge(40, errors=10)
            await one.until(lambda: not one.served.canary)
            record = read_record(one.store, PATH)
            assert record is not None
            assert (refused, [event.what for event in record.events]) == (2, ["rollback"])
        assert len((tmp_path / "audit").read_text().splitlines()) == 1

    asyncio.run(run())


def test_another_start_of_the_same_rollout_changes_how_it_is_judged(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            spec = msgspec.structs.replace(SPEC, bake_s=3600.0)
            one.store.put(stored.serving_path("toy"), stored.encode(msgspec.structs.replace(SERVING, rollout=spec)))
            one.look()
            before = one.watched
            await one.until(lambda: one.watched.judge.policy.bake_s == 3600.0)
            assert one.watched is before

    asyncio.run(run())


def test_who_has_a_key_that_is_distrusted_does_not_try_to_promote(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path, TRUST) as one:
            await one.begun()
            one.store.signer = SIGNER
            one.store.trust = dataclasses.replace(TRUST, distrusted=frozenset({SIGNER.key_id}))
            one.judge(5)
            await one.until(lambda: one.watched.waits or one.watched.promoting)
            assert "by who has a key that signs" in one.watched.waits
            assert not one.watched.promoting

    asyncio.run(run())


@pytest.mark.parametrize("told", [None, Told(None)], ids=["in trouble", "refused"])
def test_a_promotion_that_fails_is_tried_less_and_less_often(
    tmp_path: Any, monkeypatch: Any, told: Told | None
) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            tries: list[int] = []
            asked = 0

            def fails(*_: Any) -> Told | None:
                nonlocal asked
                asked += 1
                return told

            def backoff_s(number: int, *_: float) -> float:
                tries.append(number)
                return 0.0 if number < 4 else 1e6

            monkeypatch.setattr(controller, "promote", fails)
            monkeypatch.setattr(controller, "backoff_s", backoff_s)
            one.judge(5)
            await one.until(lambda: len(tries) >= 4)
            judged = 0

            def judge_until_now(_: Watched) -> None:
                nonlocal judged
                judged += 1

            with monkeypatch.context() as patched:
                patched.setattr(Watched, "judge_until_now", judge_until_now)
                await one.until(lambda: judged >= 3)
            assert (tries, asked) == ([1, 2, 3, 4], 4)
            one.judge(40, errors=10)  # while it waits, the canary is judged as before
            await one.until(lambda: (found := read_record(one.store, PATH)) and found.state == "rolled back")
            assert (tries, asked) == ([1, 2, 3, 4], 4)

    asyncio.run(run())


def test_a_promotion_that_was_not_written_down_is_once_that_can_be_done(tmp_path: Any, monkeypatch: Any) -> None:
    """Though what is served is followed meanwhile, and nothing is watched any more."""

    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            put_if, may_write = one.store.inner.put_if, threading.Event()

            def away(path: str, *more: Any) -> str | None:
                if path.startswith("rollouts/") and not may_write.is_set():
                    raise StoreUnavailable("it is away", told="it is away")
                return put_if(path, *more)

            monkeypatch.setattr(one.store.inner, "put_if", away)
            one.judge(5)
            await one.until(lambda: one.served.stable == "2")
            one.look()
            await one.until(lambda: not one.rollouts.counting.watched)
            may_write.set()
            await one.until(lambda: read_record(one.store, PATH))
            await one.until(lambda: one.rollouts.decided)
            record = read_record(one.store, PATH)
            assert record is not None
            assert [event.what for event in record.events] == ["promote"]
            assert one.rollouts.decided == {("toy", "promote"): 1}
        assert len((tmp_path / "audit").read_text().splitlines()) == 1

    asyncio.run(run())


def test_a_promotion_is_of_what_was_judged_and_of_nothing_that_came_since(tmp_path: Any, monkeypatch: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            told: list[Told] = []

            def promote_heard(store: SignedStore, decision: Decision) -> Told:
                told.append(promote(store, decision))
                return told[-1]

            monkeypatch.setattr(controller, "promote", promote_heard)
            since = msgspec.structs.replace(SERVING, canary="3")
            one.store.put(stored.serving_path("toy"), stored.encode(since))
            one.judge(5)
            await one.until(lambda: told)
            assert (told[0], one.served) == (Told(None), since)

    asyncio.run(run())


def test_a_canary_that_is_refused_for_long_is_taken_back_and_one_that_comes_late_is_not(
    tmp_path: Any, monkeypatch: Any
) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            one.versions.refused["toy/2"] = "its weights are damaged"
            await one.until(lambda: one.watched.refused_s is not None)
            del one.versions.refused["toy/2"]
            await one.until(lambda: one.watched.refused_s is None)
            monkeypatch.setattr(controller, "REFUSED_S_MAX", 0.0)
            one.versions.refused["toy/2"] = "its weights are damaged"
            await one.until(lambda: not one.served.canary)
            assert one.served.reason == "it cannot be taken up: its weights are damaged"

    asyncio.run(run())


def test_another_rollout_of_the_same_version_is_judged_anew(tmp_path: Any) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            event = Event(what="rollback", time_s=1.0, who="ada")
            add_event(one.store, PATH, Rollout(model="toy", stable="1", canary="2"), event)
            one.look()
            await one.until(lambda: one.versions.followed)
            again = msgspec.structs.replace(SERVING, rollout=msgspec.structs.replace(SPEC, started_s=2000.0))
            one.store.put(stored.serving_path("toy"), stored.encode(again))
            one.look()
            await one.until(lambda: "toy" in one.rollouts.counting.watched and len(one.rollouts._known) == 2)
            one.look()
            assert one.versions.serving["toy"] == again

    asyncio.run(run())


def test_what_was_rolled_back_by_who_has_no_key_is_not_promoted_by_who_has_not_read_that(
    tmp_path: Any, monkeypatch: Any
) -> None:
    """The word of it comes while the promotion is under way."""

    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            told: list[Told] = []

            def promote_late(store: SignedStore, decision: Decision) -> Told:
                event = Event(what="rollback", time_s=1.0, who="ada")
                add_event(store, PATH, Rollout(model="toy", stable="1", canary="2"), event)
                told.append(promote(store, decision))
                return told[-1]

            monkeypatch.setattr(controller, "promote", promote_late)
            one.judge(5)
            await one.until(lambda: told)
            await one.until(lambda: one.versions.followed)
            assert (told[0], one.served) == (Told(None), SERVING)
            assert one.versions.serving["toy"].canary == ""

    asyncio.run(run())


def test_a_promotion_that_comes_to_nothing_does_not_begin_again_what_ended_meanwhile(
    tmp_path: Any, monkeypatch: Any
) -> None:
    async def run() -> None:
        async with scene(tmp_path) as one:
            await one.begun()
            begun, ended = threading.Event(), threading.Event()
            asked = 0

            def slow(*_: Any) -> None:
                nonlocal asked
                asked += 1
                begun.set()
                assert ended.wait(WAIT_S_MAX)

            monkeypatch.setattr(controller, "promote", slow)
            monkeypatch.setattr(controller, "backoff_s", lambda *_: 0.01)
            one.judge(5)
            await one.until(begun.is_set)
            watched = one.watched
            event = Event(what="rollback", time_s=1.0, who="ada")
            add_event(one.store, PATH, Rollout(model="toy", stable="1", canary="2"), event)
            await one.until(lambda: one.versions.followed)
            (promotion,) = (task for task in asyncio.all_tasks() if "_promote" in repr(task))
            ended.set()
            await asyncio.wait([promotion], timeout=WAIT_S_MAX)
            assert (promotion.done(), asked, watched.deciding) == (True, 1, True)

    asyncio.run(run())
