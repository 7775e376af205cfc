"""The front's half of a lane with a real lane behind it: what the front learns of it, at any moment."""

import asyncio
import errno
import hashlib
import os
import signal
import socket
import subprocess
import time
from typing import Any, cast

import numpy as np
import pytest
import uvloop

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signing import ANYONE, Trust
from tests.instance_process import alive, wait_until
from tests.tiny import BIAS, MATRIX, executable_file
from warmpool import messages
from warmpool.batches import Batch, Part
from warmpool.catalog import read_catalog
from warmpool.circuit import FAILURES_MAX
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.errors import WarmpoolError
from warmpool.forking import Zygote
from warmpool.lane_memory import SHORTAGES_MAX
from warmpool.lanes import LaneProxy
from warmpool.load_plan import plan_loads
from warmpool.sent_batches import STAGED_US_MAX
from warmpool.standing_zygote import StandingZygote
from warmpool.watchdog import LOOK_S, Cause, Limits

WAIT_S_MAX = 60.0
LONG_STEPS = 2**31 - 2  # more than a second
SIGNED_ONLY = Trust()


class World:
    """A watcher that gives its lane the tiny model, and keeps what it is told."""

    def __init__(self, store, zygote, memory_bytes_max=0, limits=None, mode="jaxlib"):
        self.store = LocalStore(store)
        self.model = read_catalog(self.store).models["tiny"]
        self.told = []
        self.smaller = []
        self.news = asyncio.Event()
        standing = StandingZygote(zygote, "jaxlib", lambda stages: None)
        self.lane = LaneProxy("primary", mode, standing, ANYONE, self, 1 << 16, memory_bytes_max, limits)

    def hello(self, lane, fingerprint, stages):
        plan = plan_loads(self.store, [self.model], Fingerprint(fingerprint), verified={}, ladder_only=False)
        lane.load(plan)
        self.news.set()

    def progressed(self, lane, what, stages):
        self.news.set()

    def damaged(self, lane, loadable, reason):
        self.told.append(("damaged", loadable, reason))
        self.news.set()

    def finished(self, lane, batch, done):
        self.told.append(("finished", batch, [result.copy() for result in lane.results(batch)]))
        self.news.set()

    def failed(self, lane, batch, reason, *, out_of_memory=False):
        self.told.append(("failed", batch, reason))
        self.smaller.append(out_of_memory)
        self.news.set()

    def cooled(self, lane):
        self.news.set()

    async def until(self, condition):
        async with asyncio.timeout(WAIT_S_MAX):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def until_warm(self, pid=None):
        await self.until(lambda: self.lane.state == "warm" and self.lane.pid not in {None, pid})

    async def until_told(self, count):
        await self.until(lambda: len(self.told) >= count)
        return self.told[-1]

    def batch(self, name="predict", **inputs):
        method = self.model.methods[name]
        (executable,) = [one for one in self.lane.held.warm[method] if one.bucket == {"batch": 1}]
        arrays = [np.asarray(inputs[spec.name], spec.dtype) for spec in method.spec.inputs]
        return self.batch_of(method, executable, arrays)

    def any_batch(self, load):
        """One that fills the bucket of an executable, warm or not."""
        loadable = self.lane.held.loadable(load.executable)
        arrays = [np.zeros(shape, dtype) for dtype, shape in load.inputs]
        return self.batch_of(loadable.method, loadable.candidate, arrays)

    def batch_of(self, method, executable, arrays):
        part = Part(
            method=method,
            need=dict(executable.bucket),
            inputs=arrays,
            deadline_s=0.0,
            arrived_ns=0,
            answer=asyncio.get_running_loop().create_future(),
        )
        return Batch(method=method, parts=[part], executable=executable, formed_ns=0)


@pytest.fixture(scope="module")
def zygote():
    with Zygote.start("jaxlib") as running:
        running.read_stages()
        yield running


@pytest.fixture
def in_world(tiny_store, zygote):
    """Runs a coroutine function in a world whose lane is warm."""

    def run(coroutine):
        async def main():
            world = World(tiny_store, zygote)
            world.lane.start()
            try:
                await world.until_warm()
                await coroutine(world)
            finally:
                await world.lane.stop(WAIT_S_MAX)

        asyncio.run(main())

    return run


def test_a_batch_runs_and_its_results_can_be_read(in_world):
    async def story(world):
        batch = world.batch(x=[[1, 2, 3, 4]])
        assert world.lane.idle
        world.lane.submit(batch)
        assert not world.lane.idle
        kind, told, results = await world.until_told(1)
        assert (kind, told) == ("finished", batch)
        assert [result.tolist() for result in results] == [[[32.0, 20.0, 3.0]], [10.0]]
        assert world.lane.idle
        assert batch.padding == 0.0

    in_world(story)


def test_a_second_batch_lies_ready_while_one_runs_and_both_are_right(in_world):
    async def story(world):
        for turn in range(20):
            batches = [world.batch(x=[[turn + number, 2, 3, 4]]) for number in range(3)]
            world.lane.submit(batches[0])
            assert world.lane.may_stage
            world.lane.submit(batches[1])
            assert not world.lane.may_stage
            assert world.lane.batch is batches[0]
            await world.until_told(turn * 3 + 1)
            world.lane.submit(batches[2])  # into the half that is free again
            await world.until_told(turn * 3 + 3)
            assert world.lane.idle
            for batch, (kind, told, results) in zip(batches, world.told[-3:], strict=True):
                assert (kind, told) == ("finished", batch)
                (x,) = batch.parts[0].inputs
                assert results[0].tolist() == (x @ MATRIX + BIAS).tolist()
            assert batches[0].sent_ns <= batches[1].sent_ns <= batches[2].sent_ns

    in_world(story)


def test_while_a_run_takes_long_nothing_is_staged(in_world):
    async def story(world):
        batch = world.batch("count", steps=[3])
        batch.predicted_us = STAGED_US_MAX + 1
        world.lane.submit(batch)
        assert not world.lane.may_stage
        await world.until_told(1)

    in_world(story)


def test_of_two_batches_of_a_lane_that_dies_only_the_one_that_ran_counts_as_begun(in_world):
    async def story(world):
        running, staged = world.batch("count", steps=[LONG_STEPS]), world.batch(x=[[1, 2, 3, 4]])
        pid, before = world.lane.pid, world.lane.arena.runs_begun
        world.lane.submit(running)
        world.lane.submit(staged)
        deadline_s = time.monotonic() + WAIT_S_MAX
        while world.lane.arena.runs_begun == before:
            assert time.monotonic() < deadline_s
        os.kill(pid, signal.SIGKILL)
        await world.until_told(2)
        assert [(kind, batch, batch.begun) for kind, batch, _ in world.told] == [
            ("failed", running, True),
            ("failed", staged, False),
        ]
        await world.until_warm(pid)
        again = world.batch(x=[[0, 0, 0, 0]])
        world.lane.submit(again)
        assert (await world.until_told(3))[:2] == ("finished", again)

    in_world(story)


def test_a_staged_executable_that_is_planned_no_more_goes_after_it_has_run(in_world):
    async def story(world):
        running, staged = world.batch("count", steps=[3]), world.batch(x=[[1, 2, 3, 4]])
        world.lane.submit(running)
        world.lane.submit(staged)
        assert world.lane.methods == {running.method, staged.method}, "both are still needed"
        world.lane.retire([staged.executable.id])
        await world.until_told(2)
        assert world.lane.methods == set()
        assert [(kind, batch) for kind, batch, _ in world.told] == [("finished", running), ("finished", staged)]
        assert world.told[1][2][0].tolist() == [[32.0, 20.0, 3.0]]
        answer = await world.lane.ask(WAIT_S_MAX)
        assert answer is not None
        assert world.lane.life.restarts == 0

    in_world(story)


def test_a_lane_that_died_before_a_batch_came_to_it_gives_the_batch_back_as_not_begun(in_world):
    """Its death is there to be read, and the loop has not come to that."""

    async def story(world):
        batch, pid = world.batch(x=[[1, 2, 3, 4]]), world.lane.pid
        os.kill(pid, signal.SIGKILL)
        deadline_s = time.monotonic() + WAIT_S_MAX
        while world.lane.idle:
            assert time.monotonic() < deadline_s
        world.lane.submit(batch)
        kind, told, reason = await world.until_told(1)
        assert (kind, told, told.begun) == ("failed", batch, False)
        assert "died" in reason
        await world.until_warm(pid)
        assert world.lane.life.restarts == 1
        again = world.batch(x=[[0, 0, 0, 0]])  # of the new lane's executables
        world.lane.submit(again)
        assert (await world.until_told(2))[0] == "finished"

    in_world(story)


def test_a_lane_that_dies_in_the_middle_of_a_batch_gives_it_back_as_begun(in_world):
    async def story(world):
        batch, pid = world.batch("count", steps=[LONG_STEPS]), world.lane.pid
        before = world.lane.arena.runs_begun
        world.lane.submit(batch)
        deadline_s = time.monotonic() + WAIT_S_MAX
        while world.lane.arena.runs_begun == before:
            assert time.monotonic() < deadline_s
        os.kill(pid, signal.SIGKILL)
        kind, told, _ = await world.until_told(1)
        assert (kind, told, told.begun) == ("failed", batch, True)
        assert not world.lane.idle
        await world.until_warm(pid)

    in_world(story)


def test_a_lane_is_asked_and_one_that_dies_or_is_busy_does_not_keep_who_asks(in_world):
    async def story(world):
        assert (await world.lane.ask(WAIT_S_MAX)).compiles == 0
        pid = world.lane.pid
        world.lane.submit(world.batch("count", steps=[LONG_STEPS]))
        assert await world.lane.ask(0.01) is None
        asked = [world.lane.ask(WAIT_S_MAX) for _ in range(3)]
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*asked) == [None] * 3
        await world.until_warm(pid)
        assert (await world.lane.ask(WAIT_S_MAX)).compiles == 0

    in_world(story)


@pytest.mark.parametrize("event", ["hello", "progressed"])
def test_a_lane_about_which_the_front_fails_to_think_is_ended_and_the_next_begins_from_nothing(
    tiny_store, zygote, event, caplog
):
    async def main():
        world = World(tiny_store, zygote)
        think, pids = getattr(world, event), list[int]()

        def fail_once(*arguments):
            if not pids:
                assert world.lane.pid is not None
                pids.append(world.lane.pid)
                raise ZeroDivisionError("a mistake of ours")
            think(*arguments)

        setattr(world, event, fail_once)
        world.lane.start()
        try:
            await world.until_warm()
            assert world.lane.life.restarts == 1
            assert [told[0] for told in world.told] == ["failed"]
            assert world.lane.pid != pids[0]
            await asyncio.to_thread(wait_until, lambda: not alive(pids[0]))
        finally:
            await world.lane.stop(WAIT_S_MAX)

    asyncio.run(asyncio.wait_for(main(), WAIT_S_MAX))
    assert "a mistake of ours" in caplog.text


def test_a_lane_stops_in_the_middle_of_its_start(tiny_store, zygote):
    async def main():
        world = World(tiny_store, zygote)
        world.lane.start()
        await world.lane.stop(WAIT_S_MAX)
        assert world.lane.state == "stopped"

    asyncio.run(main())


# Replacing a lane, and giving it again what was cold


def test_a_lane_that_is_replaced_gives_its_batch_back_as_not_begun_and_has_the_new_trust(in_world):
    """Whoever replaced it is to blame, not the batch: it may run twice more."""

    async def story(world):
        batch, pid = world.batch("count", steps=[LONG_STEPS]), world.lane.pid
        before = world.lane.arena.runs_begun
        world.lane.submit(batch)
        deadline_s = time.monotonic() + WAIT_S_MAX
        while world.lane.arena.runs_begun == before:
            assert time.monotonic() < deadline_s
        assert world.lane.warmed.is_set()
        world.lane.replace(SIGNED_ONLY)
        assert not world.lane.warmed.is_set()
        kind, told, reason = await world.until_told(1)
        assert (kind, told, told.begun, reason) == ("failed", batch, False, "the primary lane was replaced")
        await world.until(lambda: world.lane.state == "warm" and world.lane.pid not in {None, pid})
        assert world.lane.warmed.is_set()
        refused = [reason for kind, _, reason in world.told if kind == "damaged"]
        assert len(refused) == len(world.lane.held.cold_reasons) == len(world.lane.held.load_plan.loadables)
        assert world.lane.held.warm_count == 0  # nothing in the store is signed

    in_world(story)


def test_a_lane_that_is_replaced_before_it_is_known_by_number_is_replaced_all_the_same(tiny_store, zygote):
    """Its process has the old trust already."""

    async def main():
        world = World(tiny_store, zygote)
        world.lane.start()
        assert world.lane.pid is None
        world.lane.replace(SIGNED_ONLY)
        try:
            await world.until(lambda: world.lane.state == "warm")
            assert world.lane.life.restarts == 1
            assert world.lane.held.warm_count == 0
        finally:
            await world.lane.stop(WAIT_S_MAX)

    asyncio.run(main())


def test_replacing_a_lane_time_and_again_while_it_loads_makes_no_executable_a_suspect(tiny_store, zygote):
    async def main():
        world = World(tiny_store, zygote)
        world.lane.start()
        try:
            for turn in range(1, 6):
                await world.until(lambda: world.lane.held.load_plan is not None and not world.lane.held.loaded)
                world.lane.replace(ANYONE)
                await world.until(lambda turn=turn: world.lane.life.restarts == turn)
            await world.until_warm()
            assert world.lane.held.cold_reasons == {}
        finally:
            await world.lane.stop(WAIT_S_MAX)

    asyncio.run(main())


def test_a_cold_executable_is_loaded_again_only_from_another_content_than_the_one_that_was_tried(
    own_store, fingerprint, zygote
):
    path = own_store / executable_file("predict", {"batch": 4}, fingerprint)
    sound = path.read_bytes()
    path.unlink()
    path.write_bytes(sound[:-1])

    async def main():
        world = World(own_store, zygote)
        world.lane.start()
        try:
            await world.until(lambda: world.lane.state == "warm")
            ((number, reason),) = world.lane.held.cold_reasons.items()
            assert "its lengths say otherwise" in reason
            assert world.lane.held.tried == {number: digest(sound[:-1])}
            warm = world.lane.held.warm_count
            assert world.lane.retry(number, path, digest(sound[:-1])) is False
            path.unlink()
            path.write_bytes(sound)
            assert world.lane.retry(number, path, digest(sound)) is True
            assert world.lane.state == "loading"
            await world.until(lambda: world.lane.state == "warm")
            assert (world.lane.held.warm_count, world.lane.held.cold_reasons) == (warm + 1, {})
            world.lane.replace(ANYONE)
            await world.until(lambda: world.lane.life.restarts == 1)
            assert world.lane.held.tried == {}  # by the next process
        finally:
            await world.lane.stop(WAIT_S_MAX)

    asyncio.run(main())


def test_nothing_is_loaded_again_by_a_lane_that_is_to_stop(own_store, fingerprint, zygote):
    (own_store / executable_file("predict", {"batch": 4}, fingerprint)).unlink()

    async def main():
        world = World(own_store, zygote)
        world.lane.start()
        await world.until(lambda: world.lane.state == "warm")
        (number,) = world.lane.held.cold_reasons
        stopping = asyncio.ensure_future(world.lane.stop(WAIT_S_MAX))  # noqa: TID251  awaited below
        await asyncio.sleep(0)
        assert world.lane.state == "stopped"
        if world.lane.held.load_plan is not None:
            assert world.lane.retry(number, own_store, "content") is False
            world.lane.extend(world.lane.held.load_plan)
        world.lane.replace(ANYONE)
        await stopping
        assert world.lane.state == "stopped"
        assert world.lane.life.restarts == 0

    asyncio.run(main())


def digest(data):
    return hashlib.sha256(data).hexdigest()


# What a lane dies of


class Puppet:
    """A zygote whose only child is the test itself, which says what a lane says and ends as it likes."""

    def __init__(self):
        self.forks: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.ahead: list[str] = []  # the modes of those that are to wait
        self.ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # until there is a fork

    def fork_lane(self, mode):
        front, lane = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lane.setblocking(False)
        self.forks.put_nowait(lane)
        return front

    def fork_ahead(self, mode):
        self.ahead.append(mode)

    def say(self, *said):
        for message in said:
            self.ours.send(message if isinstance(message, bytes) else messages.encode(message))

    async def hear(self, kind):
        data = await asyncio.get_running_loop().sock_recv(self.ours, MESSAGE_BYTES_MAX)
        message = messages.decode_from_front(data)
        assert isinstance(message, kind), message
        return message

    async def appear(self):
        """The next process."""
        self.ours.close()
        self.ours = await self.forks.get()

    async def begin(self, fingerprint):
        """The next process, when it has begun to load; what it is to load first."""
        await self.appear()
        await asyncio.get_running_loop().sock_recv(self.ours, MESSAGE_BYTES_MAX)  # its arena and trust
        self.say(messages.Hello(fingerprint=dict(fingerprint.ingredients), stages=[]))
        weights = await self.hear(messages.Weights)
        self.say(messages.Mapped(version=weights.version, stages=[], identity="file"))
        return await self.hear(messages.Load)

    def end(self, status):
        """The zygote says so last."""
        self.say(b'{"exit": %d}' % status)
        self.ours.close()


@pytest.fixture
def with_puppet(tiny_store):
    """Runs a coroutine function in a world whose lane is a puppet, on an instance's event loop."""

    def run(coroutine, limits=None, mode="jaxlib"):
        async def main():
            puppet = Puppet()
            world = World(tiny_store, cast("Any", puppet), limits=limits, mode=mode)
            world.lane.start()
            await coroutine(world, puppet)
            puppet.ours.close()
            while not puppet.forks.empty():  # of the process after that
                puppet.forks.get_nowait().close()
            await world.lane.stop(WAIT_S_MAX)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(main(), WAIT_S_MAX))

    return run


@pytest.mark.parametrize(("status", "is_deadly"), [(-signal.SIGSEGV, True), (-signal.SIGKILL, False), (1, False)])
def test_two_crashes_while_it_loads_a_content_speak_against_that_and_two_kills_do_not(
    with_puppet, fingerprint, status, is_deadly
):
    async def story(world, puppet):
        key = ""
        for _ in range(2):
            load = await puppet.begin(fingerprint)
            key = load.key
            puppet.say(messages.Loading(executable=load.executable, content="content"))
            puppet.end(status)
        await puppet.begin(fingerprint)
        assert world.lane.held.loads.gave_up(key)
        assert world.lane.held.loads.deadly(key) == ({"content"} if is_deadly else frozenset())

    with_puppet(story)


def test_what_a_lane_said_last_is_heard_though_it_left_something_unread(with_puppet, fingerprint):
    """The kernel tells of that first, as a connection that was reset."""

    async def story(world, puppet):
        load = await puppet.begin(fingerprint)
        puppet.say(messages.Loading(executable=load.executable, content="content"))
        world.lane.life.process.send(messages.Ask())
        puppet.end(-signal.SIGSEGV)
        _, _, reason = await world.until_told(1)
        assert reason == f"the primary lane died with status {-signal.SIGSEGV}"
        assert set(world.lane.held.loads._crashes) == {(load.key, "content")}
        await puppet.begin(fingerprint)

    with_puppet(story)


def test_while_it_loads_a_suspect_a_lane_takes_no_batch(with_puppet, fingerprint):
    async def story(world, puppet):
        load = await puppet.begin(fingerprint)
        puppet.say(messages.Warm(executable=load.executable, stages=[]))
        suspect = await puppet.hear(messages.Load)
        assert world.lane.idle
        puppet.end(-signal.SIGKILL)
        first = await puppet.begin(fingerprint)
        puppet.say(messages.Warm(executable=first.executable, stages=[]))
        assert await puppet.hear(messages.Load) == suspect
        assert not world.lane.idle
        puppet.say(messages.Warm(executable=suspect.executable, stages=[]))
        await puppet.hear(messages.Load)
        assert world.lane.idle

    with_puppet(story)


def test_a_suspect_is_loaded_when_the_batch_that_runs_is_done(with_puppet, fingerprint):
    async def story(world, puppet):
        first = await puppet.begin(fingerprint)
        puppet.say(messages.Warm(executable=first.executable, stages=[]))
        suspect = await puppet.hear(messages.Load)
        puppet.end(-signal.SIGKILL)
        first = await puppet.begin(fingerprint)
        batch = world.any_batch(first)
        assert world.lane.idle
        world.lane.submit(batch)
        assert isinstance(await puppet.hear(messages.Run), messages.Run)
        puppet.say(messages.Warm(executable=first.executable, stages=[]))
        await world.until(lambda: world.lane.held.warm_count == 1)
        with pytest.raises(BlockingIOError):
            puppet.ours.recv(1)
        puppet.say(messages.Done(start_ns=1, end_ns=2))
        assert await puppet.hear(messages.Load) == suspect

    with_puppet(story)


# What waits


@pytest.mark.parametrize(("mode", "ahead"), [("jaxlib", ["jaxlib"]), ("jax", [])])
def test_once_it_is_warm_the_next_process_of_a_lane_waits_unless_two_would_share_an_accelerator(
    with_puppet, fingerprint, mode, ahead
):
    async def story(world, puppet):
        load = await puppet.begin(fingerprint)
        assert puppet.ahead == []
        await until_all_warm(world, puppet, load)
        assert puppet.ahead == ahead

    with_puppet(story, mode=mode)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files"), WarmpoolError("the zygote is gone")])
def test_a_lane_for_which_no_next_process_can_be_had_lives_on(with_puppet, fingerprint, error):
    async def story(world, puppet):
        def fork_ahead(mode):
            raise error

        puppet.fork_ahead = fork_ahead
        load = await puppet.begin(fingerprint)
        await until_all_warm(world, puppet, load)
        await world.lane.warmed.wait()
        assert (world.lane.state, world.lane.life.restarts) == ("warm", 0)

    with_puppet(story)


# What hangs, and what is lost


@pytest.fixture
def victim():
    """A process that a puppet gives out as its own: what kills a lane kills it."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


async def is_killed(victim):
    assert await asyncio.to_thread(victim.wait, WAIT_S_MAX) == -signal.SIGKILL


async def until_all_warm(world, puppet, load):
    """Load what is asked for, this first."""
    while True:
        puppet.say(messages.Warm(executable=load.executable, stages=[]))
        count = world.lane.held.warm_count
        await world.until(lambda count=count: world.lane.held.warm_count > count)
        if world.lane.state == "warm":
            return
        load = await puppet.hear(messages.Load)


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        ("run_s_max", Cause.RUN_HUNG),
        ("load_s_max", Cause.LOAD_HUNG),
        ("load_s_max", Cause.START_HUNG),
        ("answer_s_max", Cause.SILENT),
    ],
)
def test_a_lane_that_owes_something_for_too_long_is_killed_and_the_reason_is_told(
    with_puppet, fingerprint, victim, limit, cause
):
    """It is the puppet that says nothing; only the limit that concerns it is short."""

    async def story(world, puppet):
        batch = None
        if cause is Cause.START_HUNG:
            await puppet.appear()
            puppet.say(b'{"pid": %d}' % victim.pid)
        else:
            first = await puppet.begin(fingerprint)
            puppet.say(b'{"pid": %d}' % victim.pid)
            if cause is not Cause.LOAD_HUNG:
                await until_all_warm(world, puppet, first)
            if cause is Cause.RUN_HUNG:
                batch = world.any_batch(first)
                world.lane.submit(batch)
        await is_killed(victim)
        puppet.end(-signal.SIGKILL)
        _, told, reason = await world.until_told(1)
        assert told is batch
        assert reason.startswith("the primary lane was ended: ")
        assert reason.endswith("took longer than 2 s")
        assert world.lane.life.ends == {cause: 1}
        assert world.lane.life.restarts == 1

    with_puppet(story, Limits(**{"ask_every_s": 0.1, limit: 2.0}))


def test_what_a_lane_was_loading_when_a_run_hung_is_no_suspect(with_puppet, fingerprint, victim):
    async def story(world, puppet):
        first = await puppet.begin(fingerprint)
        puppet.say(b'{"pid": %d}' % victim.pid, messages.Warm(executable=first.executable, stages=[]))
        loading = await puppet.hear(messages.Load)
        world.lane.submit(world.any_batch(first))
        await is_killed(victim)
        puppet.end(-signal.SIGKILL)
        await world.until_told(1)
        assert world.lane.life.ends == {Cause.RUN_HUNG: 1}
        assert not world.lane.held.loads._deaths[loading.key]

    with_puppet(story, Limits(run_s_max=1.0))


def test_a_lane_that_says_its_device_is_lost_is_ended_and_its_batch_has_begun(with_puppet, fingerprint, victim):
    async def story(world, puppet):
        first = await puppet.begin(fingerprint)
        puppet.say(b'{"pid": %d}' % victim.pid, messages.Warm(executable=first.executable, stages=[]))
        await world.until(lambda: world.lane.held.warm_count == 1)
        batch = world.any_batch(first)
        world.lane.submit(batch)
        world.lane.arena.begin_run()
        puppet.say(messages.Lost(reason="the executable failed: UNAVAILABLE: gone"))
        await is_killed(victim)
        puppet.end(1)
        _, told, reason = await world.until_told(1)
        assert (told, told.begun) == (batch, True)
        assert reason == "the primary lane was ended: its device is lost: the executable failed: UNAVAILABLE: gone"
        assert world.lane.life.ends == {Cause.DEVICE_LOST: 1}

    with_puppet(story)


async def run_short(world, puppet, load):
    """Whether the batch that found no room may run smaller there, by what is told."""
    told = len(world.told) + 1
    world.lane.submit(world.any_batch(load))
    world.lane.arena.begin_run()
    puppet.say(messages.Failed(reason="RESOURCE_EXHAUSTED: no room", out_of_memory=True))
    await world.until_told(told)
    return world.smaller[-1]


def test_a_lane_whose_runs_find_no_room_again_and_again_is_ended_and_takes_no_more(with_puppet, fingerprint, victim):
    async def story(world, puppet):
        first = await puppet.begin(fingerprint)
        puppet.say(b'{"pid": %d}' % victim.pid, messages.Warm(executable=first.executable, stages=[]))
        loading = await puppet.hear(messages.Load)
        puppet.say(messages.Cold(executable=loading.executable, reason="no room", out_of_memory=True))
        await world.until(lambda: world.lane.memory.shortages == 1)  # of a load, which does not count
        assert [await run_short(world, puppet, first) for _ in range(SHORTAGES_MAX - 1)] == [True] * (SHORTAGES_MAX - 1)
        assert world.lane.idle
        assert await run_short(world, puppet, first) is False
        assert not world.lane.idle, "its end has not been told yet"
        await is_killed(victim)
        puppet.end(-signal.SIGKILL)
        _, told, reason = await world.until_told(SHORTAGES_MAX + 1)
        assert (told, reason) == (None, "the primary lane was ended: it ran out of memory 3 times in 30 s")
        assert world.lane.life.ends == {Cause.OUT_OF_MEMORY: 1}
        assert not any(world.lane.held.loads._deaths.values()), "nothing that was being loaded is to blame"
        assert len(world.lane.life.circuit._failures) == 1

    with_puppet(story)


def test_what_lay_ready_in_a_lane_that_is_out_of_memory_is_settled_as_itself(with_puppet, fingerprint, victim):
    """Its result may be on its way when the lane is ended."""

    async def story(world, puppet):
        first = await puppet.begin(fingerprint)
        puppet.say(b'{"pid": %d}' % victim.pid, messages.Warm(executable=first.executable, stages=[]))
        await world.until(lambda: world.lane.held.warm_count == 1)
        for _ in range(SHORTAGES_MAX - 1):
            await run_short(world, puppet, first)
        short, ready = world.any_batch(first), world.any_batch(first)
        world.lane.submit(short)
        world.lane.submit(ready)
        failed = messages.Failed(reason="RESOURCE_EXHAUSTED: no room", out_of_memory=True)
        puppet.say(failed, messages.Done(start_ns=1, end_ns=2))
        puppet.end(-signal.SIGKILL)
        await world.until_told(SHORTAGES_MAX + 2)
        assert [(kind, batch) for kind, batch, _ in world.told[SHORTAGES_MAX - 1 :]] == [
            ("failed", short),
            ("finished", ready),
            ("failed", None),
        ]

    with_puppet(story)


def test_a_lane_that_comes_up_without_the_accelerator_it_had_is_ended(with_puppet, fingerprint, victim):
    """Then jax takes the CPU, for which nothing is published, and which is no accelerator."""

    async def story(world, puppet):
        await puppet.appear()
        puppet.say(messages.Hello(fingerprint={"platform": "cuda"}, stages=[]))
        await world.until(lambda: world.lane.held.load_plan is not None)
        puppet.end(-signal.SIGKILL)
        await puppet.appear()
        puppet.say(b'{"pid": %d}' % victim.pid, messages.Hello(fingerprint=dict(fingerprint.ingredients), stages=[]))
        await is_killed(victim)
        assert world.lane.held.load_plan is None
        puppet.end(-signal.SIGKILL)
        await world.until_told(2)
        assert world.lane.life.ends == {Cause.KILLED: 1, Cause.DEVICE_LOST: 1}

    with_puppet(story)


def test_a_lane_that_keeps_dying_stays_down_for_a_while_and_says_so_and_nobody_waits_for_it(with_puppet, fingerprint):
    async def story(world, puppet):
        method = world.model.methods["predict"]
        for _ in range(FAILURES_MAX):
            await puppet.appear()
            assert world.lane.may_cover(method, {"batch": 1})
            puppet.end(-signal.SIGKILL)
        await world.until_told(FAILURES_MAX)
        assert world.lane.state == "down"
        assert not world.lane.may_cover(method, {"batch": 1})
        assert world.lane.life.why_down().startswith("the primary lane is down: it failed 5 times in 30 s")
        await puppet.begin(fingerprint)  # the trial
        assert world.lane.life.circuit.state == "half-open"
        assert world.lane.may_cover(method, {"batch": 1})

    with_puppet(story)


def test_a_lane_that_stood_still_and_goes_on_in_time_is_not_ended(in_world):
    async def story(world):
        pid, batch = world.lane.pid, world.batch(x=[[1, 2, 3, 4]])
        os.kill(pid, signal.SIGSTOP)
        world.lane.submit(batch)
        assert await world.lane.ask(3 * LOOK_S) is None
        os.kill(pid, signal.SIGCONT)
        assert (await world.until_told(1))[:2] == ("finished", batch)
        assert await world.lane.ask(WAIT_S_MAX)
        assert (world.lane.pid, world.lane.life.ends) == (pid, {})

    in_world(story)


# What comes and goes


def test_what_is_retired_goes_for_good_and_a_batch_that_runs_on_it_is_answered_first(in_world):
    async def story(world):
        batch = world.batch("count", steps=[30_000_000])
        number, planned = batch.executable.id, len(world.lane.held.load_plan.loadables)
        world.lane.submit(batch)
        world.lane.retire([number, 10_000])
        assert not world.lane.held.knows(number)
        assert number not in {one.id for one in world.lane.held.warm[batch.method]}
        kind, told, results = await world.until_told(1)
        assert (kind, told) == ("finished", batch)
        assert [result.tolist() for result in results] == [[30_000_000]]
        while not world.lane.held.loads.finished:
            await world.lane.ask(WAIT_S_MAX)
        assert len(world.lane.held.load_plan.loadables) == planned - 1
        assert world.lane.held.load_plan.end == planned
        assert (await world.lane.ask(WAIT_S_MAX)).compiles == 0
        world.lane.submit(world.batch(x=[[1, 2, 3, 4]]))
        assert (await world.until_told(2))[0] == "finished"

    in_world(story)


def test_what_did_not_fit_comes_when_it_is_wanted_and_runs(tiny_store, zygote):
    async def main():
        world = World(tiny_store, zygote, memory_bytes_max=1)
        world.lane.start()
        try:
            await world.until(lambda: world.lane.held.load_plan is not None)
            plan = world.lane.held.load_plan
            assert plan is not None
            most = max(map(world.lane.held.residency.needed_bytes, plan.loadables))
            assert world.lane.held.warm_count == 0
            assert not world.lane.want(world.model.methods["predict"], {"batch": 1}), "a byte is too little for any"
            await world.lane.stop(WAIT_S_MAX)

            world = World(tiny_store, zygote, memory_bytes_max=2 * most)
            world.lane.start()
            await world.until_warm()
            states = {number: world.lane.held.state(number) for number in plan.loadables}
            assert set(states.values()) == {"warm", "evicted"}
            evicted = next(number for number, state in states.items() if state == "evicted")
            loadable = world.lane.held.loadable(evicted)
            while not world.lane.held.is_warm(evicted):
                assert world.lane.want(loadable.method, loadable.candidate.bucket)
                world.news.clear()
                await asyncio.wait_for(world.news.wait(), WAIT_S_MAX)
            assert world.lane.memory.evictions > 0
            assert world.lane.state == "warm"
            arrays = [np.zeros(shape, dtype) for dtype, shape in loadable.message.inputs]
            world.lane.submit(world.batch_of(loadable.method, loadable.candidate, arrays))
            assert (await world.until_told(1))[0] == "finished"
            answer = await world.lane.ask(WAIT_S_MAX)
            assert answer is not None
            assert answer.compiles == 0
        finally:
            await world.lane.stop(WAIT_S_MAX)

    asyncio.run(main())


def test_what_is_wanted_comes_though_what_has_to_go_for_it_runs_one_batch_after_the_other(tiny_store, zygote):
    """Whoever is told of a batch's end gives the lane the next one at once, if it is idle."""

    async def main():
        world = World(tiny_store, zygote)
        world.lane.start()
        await world.until_warm()
        residency = world.lane.held.residency
        others = [number for number in residency.held if number not in residency.pinned]
        room_for_one = max(map(residency.needed_bytes, others))
        await world.lane.stop(WAIT_S_MAX)

        world = World(tiny_store, zygote, memory_bytes_max=room_for_one)
        world.lane.start()
        try:
            await world.until_warm()
            held, method = world.lane.held, world.model.methods["predict"]
            (running,) = held.residency.held - held.residency.pinned
            wanted = next(one for one in held.covering(method, {"batch": 8}) if one.candidate.id != running)

            def go_on(*_):
                if world.lane.idle and held.is_warm(running):
                    world.lane.submit(world.any_batch(held.loadable(running).message))
                world.news.set()

            setattr(world, "finished", go_on)  # noqa: B010
            setattr(world, "cooled", go_on)  # noqa: B010
            go_on()
            assert world.lane.batch is not None
            assert world.lane.want(method, {"batch": 8})
            await world.until(lambda: held.is_warm(wanted.candidate.id))
            assert not held.is_warm(running)
            assert world.lane.batches_run > 0
        finally:
            await world.lane.stop(WAIT_S_MAX)

    asyncio.run(main())
