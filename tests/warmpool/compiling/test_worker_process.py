"""A compile worker and the front's half of it: real processes."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cache.errors import NotStored, StoreUnavailable
from cache.local_store import LocalStore
from cache.opening import open_store
from tests.instance_process import alive, descendants, wait_until
from tests.warmpool.publishing.toy import Toy
from warmpool.compiling import process as front
from warmpool.compiling import protocol, worker_process
from warmpool.compiling.process import WorkerEnded, WorkerProcess
from warmpool.compiling.protocol import Alive, Done, Job, Limits, Open, Place, Placed
from warmpool.compiling.pulse import Pulse
from warmpool.errors import PublishError
from warmpool.forking import WorkerFailed
from warmpool.publishing import places as publishing
from warmpool.publishing.made import PlaceMade
from warmpool.survey import survey

PLACE = Place("predict", "batch=1,seq=4", False)
ANSWER_S_MAX = 60.0


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    found = Toy(tmp_path_factory.mktemp("published"))
    found.publish("1")
    return found


@pytest.fixture
def opening(toy):
    limits = Limits(wall_s_max=60.0, cpu_s_max=60.0, memory_bytes_max=8 << 30)
    return Open(store=toy.settings, limits=limits)


def job(toy, **changes):
    (version,) = survey(open_store(toy.settings)).versions
    (fingerprint,) = version.targets
    fields = {"model": "toy", "version": "1", "fingerprint": fingerprint, "places": (PLACE,)}
    return Job(number=7, accelerator=False, at_a_time=1, **{**fields, **changes})


def of_worker(opening, talk):
    """What comes of a talk with a worker, which is ended then, with all that it started."""

    async def run():
        worker = await WorkerProcess.start(opening)
        try:
            return await talk(worker)
        finally:
            started = descendants(worker.process.pid)
            await worker.end()
            wait_until(lambda: not any(map(alive, started)))

    return asyncio.run(run())


def heard_from(reader, wall_s_max=1.0):
    """A worker of which there is no more than what it says."""
    to: Any = SimpleNamespace(write=lambda _: None)
    nothing: Any = None
    return WorkerProcess(nothing, reader, (nothing, to), wall_s_max)


async def until_done(worker):
    """All that it says of its job."""
    said: list[Placed | Done] = []
    async with asyncio.timeout(ANSWER_S_MAX):
        while not said or not isinstance(said[-1], Done):
            message = await worker.heard()
            if not isinstance(message, Alive):
                said.append(message)
    return said


def answers(opening, *jobs):
    async def talk(worker):
        found = []
        for one in jobs:
            worker.give(one)
            found.append(await until_done(worker))
        return found

    return of_worker(opening, talk)


def test_a_place_that_is_missing_is_made_and_told(toy, opening):
    store = LocalStore(toy.store)
    (before,) = survey(open_store(toy.settings)).versions
    (target,) = before.targets.values()
    keys = [
        spec.key for spec in target.executables if (spec.method, spec.bucket) == ("predict", {"batch": 1, "seq": 4})
    ]
    asked = job(toy)
    for key in keys:
        store.delete(f"executables/{key}")
    ((placed, done),) = answers(opening, asked)
    assert isinstance(placed, Placed)
    assert (placed.job, placed.place, placed.failure, placed.visible) == (7, PLACE, "", True)
    assert placed.seconds > 0
    assert done == Done(job=7, failure="")
    assert keys[0] in store.names("executables")


@pytest.mark.parametrize("visible", [True, False])
def test_whether_lanes_may_see_a_place_is_told(toy, opening, monkeypatch, visible):
    def make(*_, told, **__):
        told(PlaceMade(publishing.Place(*PLACE), "key", 0.5, "", visible))

    said = what_is_said(toy, opening, monkeypatch, make)
    assert said == [Placed(job=7, place=PLACE, seconds=0.5, failure="", visible=visible), Done(job=7, failure="")]


def failed(reason, detail):
    error = PublishError("it failed")
    error.__cause__ = WorkerFailed("worker:compile_bucket", reason, detail)
    return error


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (StoreUnavailable("it is away"), True),
        (OSError(28, "No space left on device"), True),
        (failed("exception", "OSError: [Errno 28] No space left on device"), True),
        (failed("exception", "PermissionError: [Errno 13] Permission denied"), True),
        (failed("exception", "ValueError: no such thing"), False),
        (failed("crash", "signal SIGABRT"), False),
        (failed("timeout", "it ran longer than 20 s"), False),
        (PublishError("nothing to compile with"), False),
        (NotStored("models/toy/1/manifest.json"), False),
    ],
)
def test_whether_a_failure_is_one_of_the_moment_is_told(toy, opening, monkeypatch, error, passing):
    def make(*_, **__):
        raise error

    (done,) = what_is_said(toy, opening, monkeypatch, make)
    assert (done.failure != "", done.passing) == (True, passing)


def what_is_said(toy, opening, monkeypatch, make):
    """By a worker in this process, of a job that is done like this."""
    said: list[Any] = []
    asked = job(toy)
    machine: Any = SimpleNamespace(fingerprint=SimpleNamespace(digest=asked.fingerprint))
    children: Any = SimpleNamespace(alive=True, at_a_time=1, machines=lambda _: (machine,))
    monkeypatch.setattr(worker_process, "make_from_store", make)
    worker = worker_process.Worker(opening, said.append, Pulse(()))  # type: ignore[arg-type]
    monkeypatch.setattr(worker, "_children", children)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    jobs.put(asked)
    jobs.put(None)
    worker.run(jobs)
    return said


def test_what_cannot_be_done_at_all_is_told_and_the_next_job_is_done(toy, opening):
    found = answers(opening, job(toy, fingerprint="0" * 64), job(toy, version="9"), job(toy, model="../toy"), job(toy))
    failures = [said[-1].failure for said in found]
    assert failures[0].startswith("the lane is 0000000000000000, the compile worker ")
    assert "models/toy/9/manifest.json" in failures[1]
    assert failures[2]
    assert failures[3] == ""


def test_a_worker_that_dies_is_noticed(opening):
    async def talk(worker):
        await worker.heard()
        worker.process.kill()
        while True:
            await worker.heard()

    with pytest.raises(WorkerEnded, match=r"^it died$"):
        of_worker(opening, talk)


def test_a_worker_that_is_stopped_is_noticed(opening, monkeypatch):
    async def talk(worker):
        await worker.heard()
        os.kill(worker.process.pid, signal.SIGSTOP)
        monkeypatch.setattr(front, "SILENT_S_MAX", 3.0)
        while True:
            await worker.heard()

    monkeypatch.setattr(front, "ENDING_S_MAX", 1.0)
    with pytest.raises(WorkerEnded, match=r"^a sign of life took longer than 3 s$"):
        of_worker(opening, talk)


def test_after_a_time_in_which_the_front_was_stopped_nothing_is_late(monkeypatch):
    monkeypatch.setattr(front, "SILENT_S_MAX", 2.0)

    async def talk():
        reader = asyncio.StreamReader()
        sink, source = os.pipe()

        def stand_still():
            time.sleep(3.0)
            os.write(source, protocol.line(Alive()))

        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(sink, "rb"))
        loop.call_soon(stand_still)
        found = await heard_from(reader).heard()
        transport.close()
        os.close(source)
        return found

    assert asyncio.run(talk()) == Alive()


def test_a_job_that_makes_nothing_for_too_long_is_noticed_though_its_worker_is_alive(monkeypatch, toy):
    now_s = 0.0
    monkeypatch.setattr(front, "time", SimpleNamespace(monotonic=lambda: now_s))
    limit_s = front.SETUP_S_MAX + front.WALLS_A_PLACE * 7.0

    async def talk():
        nonlocal now_s
        reader = asyncio.StreamReader()
        worker = heard_from(reader, wall_s_max=7.0)

        async def hear(*messages, seconds=1):
            nonlocal now_s
            for message in messages * seconds:
                now_s += 1.0
                reader.feed_data(protocol.line(message))
                assert await worker.heard() == message

        await hear(Alive(), seconds=2 * int(limit_s))  # it has no job
        worker.give(job(toy))
        await hear(Alive(), seconds=int(limit_s) - 10)
        await hear(Placed(job=7, place=PLACE, seconds=0.5, failure="", visible=True))
        await hear(Alive(), seconds=int(limit_s) - 10)
        await hear(Done(job=7, failure=""))
        await hear(Alive(), seconds=2 * int(limit_s))
        worker.give(job(toy))
        begun_s = now_s
        with pytest.raises(WorkerEnded, match=rf"^a place took longer than {limit_s:g} s$"):
            await hear(Alive(), seconds=2 * int(limit_s))
        return now_s - begun_s

    assert asyncio.run(talk()) == pytest.approx(limit_s, abs=3.0)


def test_it_ends_when_nobody_tells_it_anything():
    command = [sys.executable, "-m", "warmpool.compiling.worker_process"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_store_that_cannot_be_opened_ends_it(opening):
    elsewhere = Open(store=opening.store.__class__(store="gopher://x"), limits=opening.limits)

    async def talk(worker):
        while True:
            await worker.heard()

    with pytest.raises(WorkerEnded, match=r"^it died$"):
        of_worker(elsewhere, talk)


@pytest.mark.parametrize("text", [b"no JSON\n", b'{"type": "Placed"}\n', b"x" * (2 * protocol.LINE_BYTES_MAX)])
def test_what_is_no_message_is_as_good_as_the_end(text, monkeypatch):
    async def talk():
        reader = asyncio.StreamReader(limit=protocol.LINE_BYTES_MAX)
        reader.feed_data(text)
        reader.feed_eof()
        with pytest.raises(WorkerEnded, match=r"^it said what nobody understands"):
            await heard_from(reader).heard()

    asyncio.run(talk())


def test_every_message_comes_out_as_it_went_in(opening, toy):
    for message in (opening, job(toy)):
        assert protocol.to_worker(protocol.line(message)) == message
    for said in (
        Alive(),
        Placed(job=1, place=PLACE, seconds=0.5, failure="no", visible=False),
        Done(job=1, failure=""),
    ):
        assert protocol.from_worker(protocol.line(said)) == said
        assert protocol.line(said).count(b"\n") == 1
