"""What the upkeep of an instance decides, with lanes that do what a test says, on a real store."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.artifact import pack, unpack
from cache.errors import StoreUnavailable
from cache.fingerprint import Fingerprint
from cache.quarantine import quarantined
from cache.sightings import sightings
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from cache.wanted import wanted
from tests.cache.meddling import MeddledStore
from tests.warmpool.cared_store import COLLEAGUE, CPU, SIGNER, STRANGER, TPU, CaredStore
from warmpool import store_calls, upkeep
from warmpool.upkeep import Upkeep

WAIT_S_MAX = 60.0
AWAY = "the store cannot be read or written now; the log says why"  # all that anybody is told who asks
BYTES_MAX = 10_000


class Awaited(asyncio.Event):
    """An event that knows whether somebody waits, or waited, for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = False

    async def wait(self):
        self.waited = True
        return await super().wait()


class Lane:
    """The part of LaneProxy that an upkeep uses: it holds executables by number, warm until the test says otherwise."""

    def __init__(self, name: str, keys: list[str]) -> None:
        self.name = name
        self.load_plan: Any = SimpleNamespace(loadables={}, missing={})
        self.cold_reasons: dict[int, str] = {}
        self.tried: dict[int, str] = {}
        self.loading: set[str] = set()
        self.given_up: set[str] = set()
        self.crashes: dict[str, frozenset[str]] = {}
        self.given: list[tuple[str, bytes]] = []
        self.trusts: list[Any] = []
        self.started_ns = 1
        self.warmed = Awaited()
        for key in keys:
            self.hold(key)

    @property
    def held(self):
        """It is its own `Holdings`, and their `LoadQueue`."""
        return self

    @property
    def loads(self):
        return self

    def loadable(self, number):
        return self.load_plan.loadables[number]

    def key(self, number):
        return self.load_plan.loadables[number].message.key

    def holds(self, key):
        return key in self.loading

    def gave_up(self, key):
        return key in self.given_up

    def deadly(self, key):
        return self.crashes.get(key, frozenset())

    def retry(self, number, file, content):
        if self.tried.get(number) == content:
            return False
        del self.cold_reasons[number]
        self.given_up.discard(self.key(number))
        self.tried[number] = content
        self.given.append((self.key(number), file.read_bytes()))
        return True

    def replace(self, trust):
        self.trusts.append(trust)
        self.warmed.clear()

    # What the test does to it

    def hold(self, key):
        number = len(self.load_plan.loadables)
        self.load_plan.loadables[number] = SimpleNamespace(message=SimpleNamespace(key=key, bytes_max=BYTES_MAX))
        return number

    def _number(self, key):
        return next(number for number in self.load_plan.loadables if self.key(number) == key)

    def cold(self, key, reason, content=b""):
        """The lane tried this content, and cannot be warmed by it."""
        number = self._number(key)
        self.cold_reasons[number] = reason
        if content:
            self.tried[number] = digest(content)

    def killed_at(self, key):
        """Two processes of the lane were killed while they loaded it; the third knows nothing of what they tried."""
        number = self._number(key)
        self.cold_reasons[number] = "lanes died 2 times while they loaded it"
        self.tried.pop(number, None)
        self.given_up.add(key)

    def crashed_of(self, key, content):
        """Two processes of the lane crashed while they loaded this content."""
        self.killed_at(key)
        self.crashes[key] = self.deadly(key) | {digest(content)}


def digest(data):
    return hashlib.sha256(data).hexdigest()


class World:
    """A store with a published model, two lanes that hold all of it, and the upkeep; `looks` counts what it did."""

    def __init__(self, folder) -> None:
        self.cared = CaredStore(folder)
        self.cared.publish(sizes=(1, 2, 4))
        self.bottom = MeddledStore(self.cared.bottom.root)
        self.store = SignedStore(self.bottom, self.cared.store.trust)
        self.paths = self.cared.executables(CPU)
        self.keys = [path.removeprefix("executables/") for path in self.paths]
        self.sound = {path: self.bottom.get(path) for path in self.paths}
        self.primary, self.cpu = Lane("primary", self.keys), Lane("cpu", self.keys[:2])
        self.upkeep = Upkeep(self.store, cast("Any", [self.primary, self.cpu]))
        self.fingerprints: dict[str, Fingerprint] = {"primary": CPU}
        self.looks = 0
        self.rounds = 0
        discard, refresh_trust = self.store.discard, self.store.refresh_trust

        def counted(path):
            self.looks += 1
            discard(path)

        def counted_too():
            self.rounds += 1
            return refresh_trust()

        self.store.discard = counted  # type: ignore[method-assign]
        self.store.refresh_trust = counted_too  # type: ignore[method-assign]

    async def until(self, condition):
        """Wait until something is so that threads or tasks of the upkeep bring about."""
        async with asyncio.timeout(WAIT_S_MAX):
            while not condition():  # noqa: ASYNC110  on disk, or in a thread
                await asyncio.sleep(0.001)

    async def looked(self, times=3):
        """Wait until everything that is cold now was looked at, and nothing of that look is under way."""
        before = self.looks
        await self.until(lambda: self.looks >= before + times * 10)

    async def went_round(self, times=3):
        """Wait until distrust was followed, and machines marked, that often more from the beginning to the end."""
        before = self.rounds
        await self.until(lambda: self.rounds > before + times)

    @property
    def asked(self):
        """What is set aside, with its reason, and what is wanted."""
        return {kept.path: kept.reason for kept in quarantined(self.bottom)}, wanted(self.bottom)

    def another(self, path, payload=b"another", signer=SIGNER):
        """A sound artifact with another payload, for the place of one."""
        header, _ = unpack(self.sound[path], key=path.rpartition("/")[2], trust=ANYONE)
        return pack(header, payload, signer)


@pytest.fixture
def tended(tmp_path, monkeypatch):
    """Runs a coroutine function with a world whose upkeep runs, and looks often."""
    monkeypatch.setattr(upkeep, "LOOK_FIRST_S", 0.001)
    monkeypatch.setattr(upkeep, "LOOK_S_MAX", 0.002)
    monkeypatch.setattr(upkeep, "TRUST_EVERY_S", 0.005)

    def run(story, prepare=lambda world: None):
        async def main():
            world = World(tmp_path)
            prepare(world)
            async with asyncio.timeout(3 * WAIT_S_MAX), asyncio.TaskGroup() as group:
                task = group.create_task(world.upkeep.run(world.fingerprints))
                try:
                    await story(world)
                finally:
                    task.cancel()

        asyncio.run(main())

    return run


def told(caplog, message):
    return [record for record in caplog.records if record.message == message]


def test_a_damaged_executable_is_set_aside_and_a_sound_one_is_given_to_all_lanes_that_lack_it(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        sound = world.sound[path]
        world.bottom.put(path, sound[:-1])
        for lane in (world.primary, world.cpu):
            lane.cold(key, "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.asked[1] == [key])
        assert list(world.asked[0]) == [path]
        assert world.asked[0][path].startswith("it is damaged: it is ")
        assert world.upkeep.quarantined == 1
        await world.looked()
        assert (world.primary.given, world.cpu.given) == ([], [])
        world.bottom.put(path, sound)
        await world.until(lambda: world.primary.given and world.cpu.given)
        assert world.primary.given == world.cpu.given == [(key, sound)]
        assert world.upkeep.quarantined == 1
        assert world.upkeep.store_trouble == ""

    tended(story)


def test_a_missing_executable_is_asked_for_and_loaded_once_it_is_there(tended):
    async def story(world):
        path, key = world.paths[2], world.keys[2]
        sound = world.sound[path]
        world.bottom.delete(path)
        world.primary.cold(key, "nothing is stored")
        world.upkeep.notice()
        await world.until(lambda: world.asked == ({}, [key]))
        await world.looked()
        world.bottom.put(path, sound)
        await world.until(lambda: world.primary.given)
        assert world.primary.given == [(key, sound)]
        assert world.upkeep.quarantined == 0

    tended(story)


def test_an_executable_of_which_only_the_copy_here_is_damaged_is_simply_tried_again(tended):
    async def story(world):
        sound = world.sound[world.paths[0]]
        world.primary.cold(world.keys[0], "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.primary.given)
        assert world.primary.given == [(world.keys[0], sound)]
        assert world.cpu.given == []
        assert world.asked == ({}, [])

    tended(story)


def test_one_that_could_not_be_read_is_tried_once_and_not_for_ever(tended):
    """The lane says nothing of its content then; nor does it the second time."""

    async def story(world):
        world.primary.cold(world.keys[0], "Too many open files")
        world.upkeep.notice()
        await world.until(lambda: world.primary.given)
        world.primary.cold(world.keys[0], "Too many open files")
        world.upkeep.notice()
        await world.looked()
        assert len(world.primary.given) == 1

    tended(story)


def test_one_that_a_lane_refuses_is_neither_set_aside_nor_tried_again_until_it_is_another(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        for content in (world.bottom.get(path), world.another(path), world.another(path, b"a third")):
            world.bottom.put(path, content)
            await world.until(lambda content=content: (key, content) in world.primary.given or not world.primary.tried)
            world.primary.cold(key, "XLA would not load it", content)
            world.upkeep.notice()
            await world.looked()
        assert [data for _, data in world.primary.given] == [world.another(path), world.another(path, b"a third")]
        assert world.asked == ({}, [])
        assert world.upkeep.quarantined == 0

    tended(story)


def test_what_one_lane_refused_another_that_lacks_it_still_gets(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        sound = world.sound[path]
        world.primary.cold(key, "XLA would not load it", sound)
        world.upkeep.notice()
        await world.looked()
        world.cpu.cold(key, "nothing is stored")  # when it started, a moment before
        world.upkeep.notice()
        await world.until(lambda: world.cpu.given)
        await world.looked()
        assert (world.primary.given, world.cpu.given) == ([], [(key, sound)])

    tended(story)


def test_a_lane_that_cannot_take_it_yet_gets_it_at_a_later_look(tended):
    """Its weights are not mapped yet, say."""

    async def story(world):
        refusals = [False, False, False]
        retry = world.primary.retry
        world.primary.retry = lambda *arguments: refusals.pop() if refusals else retry(*arguments)
        world.primary.cold(world.keys[0], "nothing is stored")
        world.upkeep.notice()
        await world.until(lambda: world.primary.given)
        assert refusals == []

    tended(story)


def test_one_that_is_far_too_large_is_never_read_whole_and_stays_where_it_is(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        world.bottom.put(path, bytes(BYTES_MAX + 1))
        wholly: list[str] = []
        get, get_versioned = world.bottom.get, world.bottom.get_versioned

        def watched(path, *, bytes_max=None):
            wholly.extend([path] * (bytes_max is None or bytes_max > BYTES_MAX + 1))
            return get(path, bytes_max=bytes_max)

        def watched_too(path):
            wholly.append(path)
            return get_versioned(path)

        world.bottom.get, world.bottom.get_versioned = watched, watched_too
        world.primary.cold(key, "it is 10001 bytes long")
        world.upkeep.notice()
        await world.looked()
        assert path not in wholly
        world.bottom.get, world.bottom.get_versioned = get, get_versioned
        assert world.asked == ({}, [])
        world.bottom.put(path, world.sound[path])
        await world.until(lambda: world.primary.given)

    tended(story)


def test_an_executable_is_read_once_a_look(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        sound = world.sound[path]
        reads: list[str] = []
        world.bottom.before = lambda operation, at: reads.append(operation) if at == path else None
        world.primary.cold(key, "XLA would not load it", sound)
        world.upkeep.notice()
        await world.looked()
        assert reads.count("get") in range(world.looks - 1, world.looks + 1)
        assert set(reads) <= {"get", "discard"}

    tended(story)


def test_one_that_another_lane_is_to_load_is_looked_at_after_that(tended):
    """A look discards what is kept here of it, the file that the other lane was told."""

    async def story(world):
        key, other = world.keys[:2]
        discarded: list[str] = []
        discard = world.store.discard

        def watched(path):
            discarded.append(path)
            discard(path)

        world.store.discard = watched
        world.cpu.loading.add(key)
        for one in (key, other):
            world.primary.cold(one, "XLA would not load it", world.sound[f"executables/{one}"])
        world.upkeep.notice()
        await world.looked()
        assert set(discarded) == {f"executables/{other}"}
        world.cpu.loading.clear()
        await world.until(lambda: f"executables/{key}" in discarded)

    tended(story)


# What kills lanes


def test_one_that_kills_lanes_is_set_aside_with_that_reason_and_the_same_is_never_tried_again(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        deadly = world.sound[path]
        world.primary.crashed_of(key, deadly)
        world.upkeep.notice()
        await world.until(lambda: world.asked == ({path: "lanes died 2 times while they loaded it"}, [key]))
        await world.looked()
        world.bottom.put(path, deadly)  # by somebody who knows nothing of that
        await world.until(lambda: world.upkeep.quarantined == 2)
        assert world.primary.given == []
        world.bottom.put(path, world.another(path))
        await world.until(lambda: world.primary.given)
        assert world.primary.given == [(key, world.another(path))]
        assert world.upkeep.quarantined == 2

    tended(story)


def test_one_that_kills_lanes_in_the_place_of_one_that_did_is_set_aside_too(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        world.primary.crashed_of(key, world.sound[path])
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.quarantined == 1)
        world.bottom.put(path, world.another(path))
        await world.until(lambda: world.primary.given)
        world.primary.crashed_of(key, world.another(path))
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.quarantined == 2)
        world.bottom.put(path, world.another(path, b"a third"))
        await world.until(lambda: len(world.primary.given) == 2)
        assert [data for _, data in world.primary.given] == [world.another(path), world.another(path, b"a third")]

    tended(story)


def test_where_another_instance_set_it_aside_first_what_comes_next_is_tried(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        world.bottom.delete(path)
        world.primary.crashed_of(key, world.sound[path])
        world.upkeep.notice()
        await world.until(lambda: world.asked == ({}, [key]))
        world.bottom.put(path, world.another(path))
        await world.until(lambda: world.primary.given)
        assert world.asked[0] == {}

    tended(story)


def test_a_damaged_one_in_the_place_of_a_deadly_one_is_not_tried(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        world.primary.crashed_of(key, world.sound[path])
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.quarantined == 1)
        world.bottom.put(path, world.another(path)[:-1])
        await world.until(lambda: world.upkeep.quarantined == 2)
        await world.looked()
        assert world.primary.given == []

    tended(story)


def test_what_took_the_place_of_one_that_lanes_crashed_of_is_tried_and_not_blamed_for_that(tended):
    """Somebody repaired it before the first look."""

    async def story(world):
        path, key = world.paths[0], world.keys[0]
        world.bottom.put(path, world.another(path))
        world.primary.crashed_of(key, world.sound[path])
        world.upkeep.notice()
        await world.until(lambda: world.primary.given)
        assert world.primary.given == [(key, world.another(path))]
        assert world.asked == ({}, [])

    tended(story)


def test_one_that_lanes_were_killed_at_stays_and_is_tried_again_later_and_later(tended, monkeypatch):
    """Memory ran out, say: two deaths of everybody's reasons are no proof against it."""
    now_s = [1000.0]
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def story(world):
        path, key = world.paths[0], world.keys[0]
        for turn, pause_s in enumerate((60.0, 60.0, 120.0, 240.0)):
            world.primary.killed_at(key)
            world.upkeep.notice()
            await world.looked()
            now_s[0] += pause_s - 1.0
            await world.looked()
            assert len(world.primary.given) == turn
            now_s[0] += 1.0
            await world.until(lambda turn=turn: len(world.primary.given) == turn + 1)
        world.primary.killed_at(key)
        world.upkeep.notice()
        world.bottom.put(path, world.another(path))  # another one need not wait
        await world.until(lambda: len(world.primary.given) == 5)
        assert world.primary.given[-1] == (key, world.another(path))
        assert world.asked == ({}, [])
        assert world.upkeep.quarantined == 0

    tended(story)


# Keys that are no paths, models that were not there


@pytest.mark.parametrize("key", ["../../secret", "", "a b", "/"])
def test_a_key_that_makes_no_path_stays_cold_and_ends_nothing(tended, key):
    async def story(world):
        path = world.paths[0]
        sound = world.sound[path]
        number = world.primary.hold(key)
        world.primary.cold(key, "it makes no path")
        world.primary.cold(world.keys[0], "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.primary.given)
        assert world.primary.given == [(world.keys[0], sound)]
        assert list(world.primary.cold_reasons) == [number]
        assert world.asked == ({}, [])

    tended(story)


# Keys that nobody trusts any more


def test_when_a_key_is_distrusted_lanes_are_replaced_one_after_the_other(tended, caplog):
    async def story(world):
        await world.until(lambda: sightings(world.bottom))
        assert world.primary.trusts == []
        world.bottom.put(f"distrusted/{COLLEAGUE.key_id}", b"{}")
        await world.until(lambda: world.primary.trusts)
        assert world.primary.trusts == [world.store.trust]
        assert world.store.trust.distrusted == {COLLEAGUE.key_id}
        await world.until(lambda: world.primary.warmed.waited)
        assert world.cpu.trusts == []  # it answers until the other one does again
        world.primary.warmed.set()
        await world.until(lambda: world.cpu.trusts)
        world.cpu.warmed.set()
        await world.went_round()
        assert (len(world.primary.trusts), len(world.cpu.trusts)) == (1, 1)  # and never again for that

    tended(story)
    (record,) = told(caplog, "keys are distrusted: lanes are replaced")
    assert record.keys == [COLLEAGUE.key_id]


def test_a_lane_that_never_started_is_not_waited_for(tended):
    async def story(world):
        world.bottom.put(f"distrusted/{COLLEAGUE.key_id}", b"{}")
        await world.until(lambda: world.cpu.trusts)
        assert world.primary.trusts == [world.store.trust]

    tended(story, lambda world: setattr(world.primary, "started_ns", 0))


def test_a_lane_that_does_not_come_back_does_not_keep_the_others_from_being_replaced(tended, monkeypatch):
    monkeypatch.setattr(upkeep, "REPLACED_S_MAX", 0.05)

    async def story(world):
        world.bottom.put(f"distrusted/{COLLEAGUE.key_id}", b"{}")
        await world.until(lambda: world.cpu.trusts)
        assert not world.primary.warmed.is_set()

    tended(story)


def test_what_a_distrusted_key_signed_is_set_aside_and_asked_for_again(tended):
    async def story(world):
        path, key = world.paths[0], world.keys[0]
        theirs = world.another(path, signer=COLLEAGUE)
        world.bottom.put(path, theirs)
        world.bottom.put(f"distrusted/{COLLEAGUE.key_id}", b"{}")
        await world.until(lambda: world.primary.trusts)
        world.primary.cold(key, "it is not trusted", theirs)
        world.upkeep.notice()
        await world.until(lambda: world.asked[1] == [key])
        assert world.asked[0][path].endswith("which is distrusted")

    tended(story)


@pytest.mark.parametrize("signer", [STRANGER, None], ids=["by a key that is not known here", "by nobody"])
def test_what_is_signed_by_nobody_this_instance_knows_stays_for_others_and_is_not_asked_for(tended, signer):
    """An instance that lacks a key of the fleet's would dismantle the store for all of it."""

    async def story(world):
        path, key = world.paths[0], world.keys[0]
        theirs = world.another(path, signer=signer)
        world.bottom.put(path, theirs)
        world.primary.cold(key, "it is not trusted", theirs)
        world.upkeep.notice()
        await world.looked()
        assert (world.bottom.get(path), world.asked, world.primary.given) == (theirs, ({}, []), [])
        world.bottom.put(path, world.another(path))
        await world.until(lambda: world.primary.given)

    tended(story)


# Which kinds of machine are about


def test_every_kind_of_machine_in_the_instance_is_marked_as_it_becomes_known(tended):
    async def story(world):
        await world.until(lambda: set(sightings(world.bottom)) == {CPU.digest})
        world.fingerprints["cpu"] = TPU
        await world.until(lambda: set(sightings(world.bottom)) == {CPU.digest, TPU.digest})

    tended(story)


def test_a_mark_is_left_again_every_day_and_not_more_often(tended, monkeypatch):
    async def story(world):
        await world.until(lambda: sightings(world.bottom))
        world.bottom.delete(f"fingerprints/{CPU.digest}")
        await world.went_round()
        assert sightings(world.bottom) == {}
        monkeypatch.setattr(upkeep, "MARK_EVERY_S", 0.01)
        await world.until(lambda: sightings(world.bottom))

    tended(story)


def test_an_instance_whose_lanes_never_said_what_they_are_is_tended_all_the_same(tended):
    async def story(world):
        sound = world.sound[world.paths[0]]
        world.primary.cold(world.keys[0], "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.primary.given)
        assert sightings(world.bottom) == {}

    tended(story, lambda world: world.fingerprints.clear())


# Stores in trouble


def away(operation, path):
    raise StoreUnavailable("the store is away")


def test_a_store_that_is_away_is_told_once_and_what_was_to_be_done_is_done_later(tended, caplog):
    caplog.set_level(logging.INFO)

    async def story(world):
        sound = world.sound[world.paths[0]]
        for key in world.keys:
            world.primary.cold(key, "it is damaged", sound[:-1])
        world.bottom.before = away
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.store_trouble)
        await world.looked()
        assert world.upkeep.store_trouble == AWAY
        assert world.primary.given == []
        world.bottom.before = lambda operation, path: None
        await world.until(lambda: len(world.primary.given) == 3)
        await world.until(lambda: not world.upkeep.store_trouble)

    tended(story)
    (record,) = told(caplog, "store cannot be used now")
    assert record.reason == "the store is away"
    assert len(told(caplog, "store can be used again")) == 1


def test_a_store_that_can_be_read_and_not_written_is_told_once_and_stays_in_trouble(tended, caplog):
    """What can be read all the while does not make it whole again."""
    changing = ("put", "put_file", "put_if", "delete", "delete_if")

    def read_only(operation, path):
        if operation in changing:
            raise StoreUnavailable("read-only file system")

    async def story(world):
        damaged, _, missing = world.paths
        sound = world.sound[damaged]
        world.bottom.put(damaged, sound[:-1])
        world.bottom.delete(missing)
        world.bottom.before = read_only
        world.primary.cold(world.keys[0], "it is damaged", sound[:-1])
        world.primary.crashed_of(world.keys[1], world.sound[world.paths[1]])
        world.primary.cold(world.keys[2], "nothing is stored")
        world.upkeep.notice()
        for _ in range(20):
            await world.looked(1)
            assert world.upkeep.store_trouble == AWAY
        assert world.primary.given == []
        assert world.upkeep.quarantined == 0
        world.bottom.before = lambda operation, path: None
        await world.until(lambda: world.upkeep.quarantined == 2 and len(world.asked[1]) == 3)
        await world.until(lambda: not world.upkeep.store_trouble)

    tended(story)
    assert len(told(caplog, "store cannot be used now")) == 1


def test_trouble_with_what_is_no_longer_cold_is_over(tended):
    def not_the_first(operation, path):
        if path.startswith("executables/"):
            raise StoreUnavailable("it cannot be read")

    async def story(world):
        world.bottom.before = not_the_first
        world.primary.cold(world.keys[0], "it is damaged")
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.store_trouble)
        world.primary.cold_reasons.clear()  # the lane died, and read it this time
        world.upkeep.notice()
        await world.until(lambda: not world.upkeep.store_trouble)

    tended(story)


def test_a_store_that_was_moved_away_is_in_trouble_and_is_not_begun_again(tended):
    async def story(world):
        root, elsewhere = world.bottom.root, world.bottom.root.with_name("elsewhere")
        sound = world.sound[world.paths[0]]
        await world.until(lambda: world.upkeep._marked_s)  # nothing is being written
        root.rename(elsewhere)
        world.primary.cold(world.keys[0], "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.store_trouble)
        await world.looked()
        assert "nothing is published in it any more" in world.upkeep.store_trouble
        assert not root.exists()
        elsewhere.rename(root)
        await world.until(lambda: world.primary.given and not world.upkeep.store_trouble)
        assert world.asked == ({}, [])

    tended(story)


def test_a_store_that_never_answers_keeps_nobody_from_ending(tmp_path, monkeypatch):
    """The thread that waits for it is left behind, and does not keep the process."""
    monkeypatch.setattr(upkeep, "LOOK_FIRST_S", 0.001)
    waiting, answer = threading.Event(), threading.Event()

    def wait(operation, path):
        waiting.set()
        assert answer.wait(WAIT_S_MAX)

    async def main():
        world = World(tmp_path)
        world.bottom.before = wait
        world.primary.cold(world.keys[0], "it is damaged")
        world.upkeep.notice()
        async with asyncio.timeout(WAIT_S_MAX), asyncio.TaskGroup() as group:
            task = group.create_task(world.upkeep.run({}))
            await world.until(waiting.is_set)
            task.cancel()

    asyncio.run(main())
    assert not answer.is_set()
    left = [thread for thread in threading.enumerate() if thread.name == "store call"]
    assert left
    assert all(thread.daemon for thread in left)
    answer.set()
    for thread in left:
        thread.join(WAIT_S_MAX)


def test_a_store_that_never_answers_is_in_trouble_and_distrust_is_followed_all_the_same(tended, monkeypatch):
    """Another process holds a lock that asking for an executable needs, say."""
    monkeypatch.setattr(store_calls, "CALL_S_MAX", 0.05)
    answer = threading.Event()

    def wait(operation, path):
        if path.startswith("executables/"):
            assert answer.wait(WAIT_S_MAX)

    async def story(world):
        sound = world.sound[world.paths[0]]
        world.bottom.before = wait
        for key in world.keys:
            world.primary.cold(key, "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.store_trouble)
        assert world.upkeep.store_trouble.startswith("the store did not answer within 0.05 s")
        world.bottom.put(f"distrusted/{COLLEAGUE.key_id}", b"{}")
        await world.until(lambda: world.primary.trusts)
        answer.set()
        await world.until(lambda: len(world.primary.given) == 3 and not world.upkeep.store_trouble)

    tended(story)


def test_of_what_no_store_may_raise_the_log_says_where_and_what_was_to_be_done_is_done_later(tended, caplog):
    def broken(operation, path):
        raise RuntimeError("a bug")

    async def story(world):
        sound = world.sound[world.paths[0]]
        world.bottom.before = broken
        world.primary.cold(world.keys[0], "it is damaged", sound[:-1])
        world.upkeep.notice()
        await world.until(lambda: world.upkeep.store_trouble)
        assert world.upkeep.store_trouble == "it failed (RuntimeError); the log says where"
        world.bottom.before = lambda operation, path: None
        await world.until(lambda: world.primary.given and not world.upkeep.store_trouble)

    tended(story)
    assert "in broken" in caplog.text
