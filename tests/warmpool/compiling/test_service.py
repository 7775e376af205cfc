"""The compile service between what is missing and a worker: both are made up here."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.warmpool.compiling.made_up import METHOD, as_found, gap
from warmpool.compiling import service as service_module
from warmpool.compiling.gaps import Made
from warmpool.compiling.process import WorkerEnded
from warmpool.compiling.protocol import Done, FromWorker, Job, Limits, Open, Placed
from warmpool.compiling.service import CompileService, Told
from warmpool.settings import Settings
from warmpool.store_calls import StoreCalls


class Missing:
    """What is missing, and for whom; a look at it takes until `answers` is set."""

    accelerator = False

    def __init__(self) -> None:
        self.gaps: list[Any] = []
        self.versions = frozenset({"tiny/1"})
        self.machines = frozenset({"f"})
        self.answers = asyncio.Event()
        self.looks = 0

    def concerns(self) -> frozenset[str]:
        return self.machines | self.versions

    def look(self) -> Any:
        self.looks += 1
        return lambda: as_found(*self.gaps)


class Calls(StoreCalls):
    """Waits for what is missing."""

    def __init__(self, missing: Missing) -> None:
        super().__init__()
        self._missing = missing

    async def ask(self, what: str, call: Any) -> Any:
        await self._missing.answers.wait()
        return call()


class Worker:
    """Says what it is told to, or ends."""

    started: list[Worker]

    def __init__(self, opening: Open) -> None:
        self.opening = opening
        self.process = SimpleNamespace(pid=1)
        self.jobs: list[Job] = []
        self.says: asyncio.Queue[FromWorker | WorkerEnded] = asyncio.Queue()

    @classmethod
    async def start(cls, opening: Open) -> Worker:
        cls.started.append(cls(opening))
        return cls.started[-1]

    def give(self, job: Job) -> None:
        self.jobs.append(job)

    async def heard(self) -> FromWorker:
        said = await self.says.get()
        if isinstance(said, WorkerEnded):
            raise said
        return said

    async def end(self) -> None:
        pass


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """The workers that were started."""
    Worker.started = []
    monkeypatch.setattr(service_module, "WorkerProcess", Worker)
    return Worker.started


@contextlib.asynccontextmanager
async def serving(
    missing: Missing, told: list[Any] | None = None, untold: set[Made] | None = None, **changes: Any
) -> Any:
    """A service that runs; `told`: what was made, each time that somebody is told; `untold` cannot be told."""

    async def made(more: Any) -> set[Made]:
        if told is not None:
            told.append(set(more))
        return set(more) & (untold or set())

    store: Any = SimpleNamespace(require_signer=lambda: None)
    lacking: Any = missing
    service = CompileService(
        Settings(store="/nowhere", **{"compile": "auto", **changes}),
        store,
        lacking,
        Calls(missing),
        Told(made, lambda: None),
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(service.run())
        yield service
        running.cancel()


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  threads are waited for
            await asyncio.sleep(0.01)


def test_a_version_may_be_made_yet_until_a_look_at_it_on_its_lanes_kind_of_machine_found_nothing():
    async def run() -> None:
        missing = Missing()
        async with serving(missing) as service:
            await until(lambda: missing.looks == 1)
            assert service.makes("tiny", "1")
            missing.answers.set()
            await until(lambda: not service.makes("tiny", "1"))
            missing.answers.clear()
            assert service.makes("tiny", "2")
            missing.versions |= {"tiny/2"}
            missing.gaps = [gap(ladder=True, version="2")]
            await until(lambda: missing.looks >= 2)
            assert service.makes("tiny", "2")
            missing.answers.set()
            await until(lambda: not service.makes("tiny", "2"))
            missing.machines |= {"g"}
            assert service.makes("tiny", "1")

    asyncio.run(run())


def test_nothing_may_be_made_yet_where_nothing_is_ever():
    async def run() -> None:
        async with serving(Missing(), compile="off") as service:
            assert not service.makes("tiny", "1")

    asyncio.run(run())


def test_a_worker_is_opened_with_the_store_and_the_limits_of_the_settings(started):
    async def run() -> None:
        missing = Missing()
        missing.gaps = [gap()]
        missing.answers.set()
        async with serving(missing, compile_s_max=11.0, compile_cpu_s_max=12.0, compile_memory_bytes_max=13):
            await until(lambda: started)

    asyncio.run(run())
    assert started[0].opening.store.store == "/nowhere"
    assert started[0].opening.limits == Limits(wall_s_max=11.0, cpu_s_max=12.0, memory_bytes_max=13)


@pytest.mark.parametrize(("cores", "spare"), [(1, 1), (2, 1), (8, 7)])
def test_a_core_is_left_to_who_serves_but_while_a_minimum_set_is_made(started, monkeypatch, cores, spare):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))

    async def at_a_time(**changes: Any) -> int:
        missing = Missing()
        missing.gaps = [gap(**changes)]
        missing.answers.set()
        async with serving(missing):
            await until(lambda: started and started[-1].jobs)
            (job,) = started.pop().jobs
        return job.at_a_time

    assert asyncio.run(at_a_time()) == spare
    assert asyncio.run(at_a_time(minimum=True)) == cores


def test_ends_of_workers_are_forgotten_once_something_was_made(started, monkeypatch):
    """Whatever there is to do all the time, another worker comes soon."""
    ends: list[int] = []

    def soon(tries: int, first_s: float, _: float) -> float:
        if first_s == service_module.RESTART_FIRST_S:
            ends.append(tries)
        return 0.0 if first_s == service_module.RESTART_FIRST_S else first_s

    monkeypatch.setattr(service_module, "backoff_s", soon)

    async def run() -> None:
        missing = Missing()
        missing.gaps = [gap(seq=seq) for seq in (1, 2, 4, 8, 16, 32)]
        missing.answers.set()

        async def job_of(number: int) -> tuple[Worker, Job]:
            await until(lambda: len(started) == number and started[-1].jobs)
            return started[-1], started[-1].jobs[-1]

        def placed(job: Job, failure: str) -> Placed:
            return Placed(job=job.number, place=job.places[0], seconds=1.0, failure=failure, visible=not failure)

        async with serving(missing):
            for number, fails in ((1, True), (2, True), (3, False)):
                worker, job = await job_of(number)
                worker.says.put_nowait(placed(job, "no" if fails else ""))
                worker.says.put_nowait(WorkerEnded("it died"))
            await job_of(4)

    asyncio.run(run())
    assert ends == [0, 1, 2, 1]


PRIMARY, CPU = Made("tiny/1", ladder=False), Made("tiny/1", ladder=True)


def placed(job: Job, place: Any, *, visible: bool) -> Placed:
    return Placed(job=job.number, place=place, seconds=1.0, failure="", visible=visible)


def done(job: Job) -> Done:
    return Done(job=job.number, failure="")


def test_whose_lane_may_see_more_is_told_at_once_and_only_the_end_of_a_job_leads_to_a_look(started):
    async def run() -> None:
        missing, told = Missing(), list[Any]()
        primary, cpu = gap(seq=8), gap(seq=8, ladder=True)
        missing.gaps = [primary, cpu]
        missing.answers.set()
        async with serving(missing, told) as service:
            await until(lambda: started and started[-1].jobs)
            worker, looks = started[-1], missing.looks
            worker.says.put_nowait(placed(worker.jobs[0], primary.place, visible=False))
            worker.says.put_nowait(placed(worker.jobs[0], cpu.place, visible=True))
            await until(lambda: told)
            assert (told, missing.looks) == ([{CPU}], looks)
            missing.gaps = []
            worker.says.put_nowait(done(worker.jobs[0]))
            await until(lambda: len(told) == 2)
            assert told[-1] == {PRIMARY}, "it may be seen by now, and its lane was not told yet"
            assert missing.looks == looks + 1
            assert service.outcomes == {"made": 2, "failed": 0}

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["job", "worker"])
def test_what_others_made_or_a_worker_did_not_live_to_tell_is_told_after_the_next_look(started, ends):
    async def run() -> None:
        missing, told = Missing(), list[Any]()
        missing.gaps = [gap(), gap(ladder=True), gap(version="2")]
        missing.answers.set()
        async with serving(missing, told):
            await until(lambda: started and started[-1].jobs)
            missing.gaps = [gap(ladder=True)]
            started[-1].says.put_nowait(done(started[-1].jobs[0]) if ends == "job" else WorkerEnded("it died"))
            await until(lambda: told)
            assert told == [{PRIMARY, Made("tiny/2", ladder=False)}]

    asyncio.run(run())


def test_what_a_lane_could_not_be_told_is_told_again_and_is_lacking_until_then(started, monkeypatch):
    monkeypatch.setattr(service_module, "backoff_s", lambda *_: 0.01)

    async def run() -> None:
        missing, told, untold = Missing(), list[Any](), {PRIMARY}
        one = gap()
        missing.gaps = [one]
        missing.answers.set()
        async with serving(missing, told, untold) as service:
            await until(lambda: started and started[-1].jobs)
            started[-1].says.put_nowait(placed(started[-1].jobs[0], one.place, visible=True))
            await until(lambda: len(told) > 2)
            assert service.lacking(METHOD) == [one.bucket]
            untold.clear()
            await until(lambda: not service.lacking(METHOD))
            assert all(what == {PRIMARY} for what in told)

    asyncio.run(run())
