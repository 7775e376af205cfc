"""The compile service of one instance: what is missing is made beside it, the most useful first; nobody waits for that.

It looks at what the targets of its versions lack for its lanes (`lacking`), puts that in order (`order`), and gives it
to a worker process (`process`), one job at a time, in which as many are compiled at a time as there are spare cores; as
many as there are cores for a minimum set, without which nobody gets an answer anyway.
What it makes the lanes take up at once, and what others make after the next look. What cannot be made is kept with its
error and rests (`history`). Several instances on one store share the work: the worker claims what it makes
(`warmpool.publishing.claims`).

A worker that dies or hangs is replaced after a while, and one that has nothing to do is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cache.errors import Untrusted
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from warmpool.backoff import backoff_s
from warmpool.catalog import ServedMethod
from warmpool.compiling.backlog import Backlog, Now
from warmpool.compiling.gaps import Gap, Made
from warmpool.compiling.lacking import Lacking
from warmpool.compiling.process import WorkerEnded, WorkerProcess
from warmpool.compiling.protocol import Done, FromWorker, Job, Limits, Open, Placed
from warmpool.selection import Sizes
from warmpool.settings import Settings
from warmpool.store_calls import StoreCalls

log = logging.getLogger(__name__)

LOOK_FIRST_S, LOOK_S_MAX = 2.0, 300.0  # at each end of a job there is a look anyway, and a job takes less
GLANCE_EVERY_S = 1.0  # at what is served, and on what
IDLE_S_MAX = 60.0  # without a job, until the worker is ended: it holds memory
RESTART_FIRST_S, RESTART_S_MAX = 1.0, 60.0
TELL_FIRST_S, TELL_S_MAX = 1.0, 20.0  # what a lane could not be told


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told what.

    Attributes:
        made: What the store has more of than before; it returns what of that could not be told to its lane now.
        changed: That something else will be made, or less.
    """

    made: Callable[[Collection[Made]], Awaitable[set[Made]]]
    changed: Callable[[], None]


class CompileService:
    """The service of one instance.

    Args:
        settings: The instance's.
        store: Where it is to be stored.
        lacking: Finds what is missing.
        calls: Of the store.
        told: Who is told what happens.

    Attributes:
        off: Why nothing is made, "" if it is.
    """

    def __init__(self, settings: Settings, store: SignedStore, lacking: Lacking, calls: StoreCalls, told: Told) -> None:
        self.off = _why_off(settings, store)
        self._opening = _opening(settings)
        self._cores = len(os.sched_getaffinity(0))
        self._spare = max(1, self._cores - 1)
        self._backlog = Backlog(self._spare)
        self._lacking = lacking
        self._calls = calls
        self._told = told
        self._worker: WorkerProcess | None = None
        self._ends = 0  # of workers, since something was made last
        self._seen: frozenset[str] = frozenset()  # what the last look that was answered was about
        self._news = asyncio.Event()
        self._due = asyncio.Event()
        self._made: set[Made] = set()  # what nobody was told of yet
        self._tells = asyncio.Event()

    def notice(self) -> None:
        """Something may be missing that was there."""
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        if self.off:
            log.info("nothing is compiled by this instance", extra={"reason": self.off})
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_ever())
            group.create_task(self._work_for_ever())
            group.create_task(self._tell_for_ever())

    # What others ask

    def ready_in_s(self, method: ServedMethod, need: Sizes) -> float | None:
        """In how many seconds the first executable that covers rows of a need will be warm; None if none is coming."""
        return self._backlog.ready_in_s(method, need, time.monotonic())

    def over_in_s(self) -> float:
        """In how many seconds all that is due will be made, by what is known; 0.0 if nothing is."""
        return self._backlog.over_in_s(time.monotonic())

    def lacking(self, method: ServedMethod) -> Sequence[Sizes]:
        """Buckets of a method that are planned for the primary lane, and that it has not been told of."""
        return self._backlog.lacking(method)

    def makes(self, model: str, version: str) -> bool:
        """Whether something of a version is under way, or may be yet, for the primary lane: until a look says no."""
        if self.off:
            return False
        seen = self._lacking.machines | {f"{model}/{version}"} <= self._seen
        return not seen or self._backlog.makes(model, version, time.monotonic())

    def why_not(self, model: str, version: str) -> str:
        """As `History.why_not`."""
        return self._backlog.history.why_not(model, version)

    @property
    def waiting(self) -> int:
        """How many executables are missing and will be made, those that are under way among them."""
        running = self._backlog.running
        return len(self._backlog.waiting) + (len(running.left) if running else 0)

    @property
    def outcomes(self) -> dict[str, int]:
        """How many there were ever of each outcome."""
        history = self._backlog.history
        return {"made": history.made, "failed": history.failed}

    def describe(self) -> dict[str, Any]:
        """As the status shows it."""
        return {
            "state": "off" if self.off else "running" if self._backlog.running else "idle",
            "reason": self.off,
            "worker_pid": self._worker.process.pid if self._worker else None,
            **self._backlog.describe(time.monotonic()),
        }

    # Looking

    async def _look_for_ever(self) -> None:
        looks, known = 0, False
        while True:
            self._news.clear()
            concerns = self._lacking.concerns()
            found = await self._calls.ask("what is missing", self._lacking.look())
            if found is not None:  # else what was known stays
                self._tell(gap.closed for gap in self._backlog.closed_by_others(found, _now()))
                if self._backlog.take_in(found, _now()) or not known:
                    self._told.changed()
                known, self._seen = True, concerns
            self._begin_next()
            looks += 1
            if await self._news_within(backoff_s(looks, LOOK_FIRST_S, LOOK_S_MAX), concerns):
                looks = 0

    async def _news_within(self, wait_s: float, concerns: frozenset[str]) -> bool:
        """Wait until something else may be missing, or the time has passed; whether it is the former."""
        over_s = time.monotonic() + wait_s
        while (left_s := over_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left_s, GLANCE_EVERY_S))
            if self._news.is_set() or self._lacking.concerns() != concerns:
                return True
        return False

    async def _tell_for_ever(self) -> None:
        tries = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s(tries, TELL_FIRST_S, TELL_S_MAX) if self._made else None):
                    await self._tells.wait()
            self._tells.clear()
            made, self._made = self._made, set()
            untold = await self._told.made(made)
            if self._backlog.told(made - untold):
                self._told.changed()
            tries = tries + 1 if untold else 0
            self._made |= untold

    # Working

    async def _work_for_ever(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(backoff_s(self._ends, RESTART_FIRST_S, RESTART_S_MAX))
            try:
                await self._employ()
                self._ends = 0
            except (WorkerEnded, OSError) as error:
                self._ends += 1
                log.error("compile worker ended; starting another", extra={"reason": str(error)})  # noqa: TRY400
                self._failed(self._backlog.ended(str(error), _now()), str(error))
                self._news.set()

    async def _employ(self) -> None:
        """Have a worker until there has been nothing to do for a while. Raises WorkerEnded, OSError."""
        worker = self._worker = await WorkerProcess.start(self._opening)
        try:
            self._begin_next()
            busy_s = time.monotonic()
            while time.monotonic() - busy_s < IDLE_S_MAX:
                self._heard(await worker.heard())
                if self._backlog.running:
                    busy_s = time.monotonic()
        finally:
            self._worker = None
            await worker.end()

    def _begin_next(self) -> None:
        """Give the worker the next job, if it has none; see to it that there is a worker if there are jobs."""
        if self._worker and not self._backlog.running and (gaps := self._backlog.begin(_now())):
            running = self._backlog.running
            assert running is not None
            first = gaps[0]
            self._worker.give(
                Job(
                    number=running.number,
                    model=first.model,
                    version=first.version,
                    fingerprint=first.fingerprint,
                    accelerator=self._lacking.accelerator,
                    at_a_time=self._cores if first.minimum else self._spare,
                    places=tuple(gap.place for gap in gaps),
                )
            )
        if self._backlog.waiting:
            self._due.set()
        else:
            self._due.clear()

    def _heard(self, message: FromWorker) -> None:
        running = self._backlog.running
        match message:
            case Placed():
                if message.visible and running and running.number == message.job:  # what it made besides, too
                    model, version, _ = running.target
                    self._tell([Made(f"{model}/{version}", message.place.ladder)])
                if not message.failure:
                    self._ends = 0
                gap = self._backlog.placed(message, _now())
                if gap and message.failure:
                    self._failed([gap], message.failure)
                elif gap:
                    log.info(
                        "executable is made", extra={"executable": gap.title, "seconds": round(message.seconds, 3)}
                    )
            case Done():
                self._failed(self._backlog.over(message, _now()), message.failure)
                self._news.set()  # the next job is what comes first by then

    def _tell(self, made: Iterable[Made]) -> None:
        more = set(made)
        self._made |= more
        if more:
            self._tells.set()

    def _failed(self, gaps: Iterable[Gap], reason: str) -> None:
        for gap in gaps:
            log.error("executable cannot be made", extra={"executable": gap.title, "reason": reason})
        self._told.changed()


def _now() -> Now:
    return Now(time.monotonic(), time.time())


def _why_off(settings: Settings, store: SignedStore) -> str:
    if settings.compile == "off":
        return "--compile off"
    try:
        store.require_signer()
    except Untrusted as error:
        return error.reason
    return ""


def _opening(settings: Settings) -> Open:
    names = [one.name for one in dataclasses.fields(StoreSettings)]
    limits = Limits(
        wall_s_max=settings.compile_s_max,
        cpu_s_max=settings.compile_cpu_s_max,
        memory_bytes_max=settings.compile_memory_bytes_max,
    )
    return Open(store=StoreSettings(**{name: getattr(settings, name) for name in names}), limits=limits)
