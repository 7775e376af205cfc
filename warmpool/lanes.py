"""The front's half of a lane: start it, load it, give it batches, notice its death, start it again.

Everything here happens in the event loop's thread, in callbacks that do not wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cache.signing import Trust
from warmpool import messages
from warmpool.arena import Arena
from warmpool.backoff import backoff_s
from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.holdings import Holdings
from warmpool.lane_process import LaneProcess
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.scheduling.cost_model import CostModel
from warmpool.selection import Sizes
from warmpool.standing_zygote import StandingZygote

if TYPE_CHECKING:
    from cache.executable import Mode

log = logging.getLogger(__name__)

RESTART_DELAY_S = 0.1
RESTART_DELAY_S_MAX = 5.0


class Watcher(Protocol):
    """Who is told what happens in a lane."""

    def hello(self, lane: LaneProxy, fingerprint: dict[str, str], stages: list[messages.Stage]) -> None:
        """The lane has a client of this fingerprint; it waits for `LaneProxy.load`."""

    def progressed(self, lane: LaneProxy, what: Loadable | str, stages: list[messages.Stage]) -> None:
        """The lane warmed an executable, or mapped weights; it may now take batches that it could not before."""

    def damaged(self, lane: LaneProxy, loadable: Loadable, reason: str) -> None:
        """An executable cannot be made warm."""

    def finished(self, lane: LaneProxy, batch: Batch, done: messages.Done) -> None:
        """The results lie in the lane's arena; the lane takes the next batch when this returns."""

    def failed(self, lane: LaneProxy, batch: Batch | None, reason: str) -> None:
        """A run failed, or the lane died (with or without a batch)."""


class LaneProxy:
    """One lane, over all the processes that it consists of in its life.

    Attributes:
        held: What it holds, and is to hold.
        costs: What its batches take.
        warmed: Is set once everything was tried.
    """

    def __init__(
        self, name: str, mode: Mode, zygote: StandingZygote, arena_bytes: int, trust: Trust, watcher: Watcher
    ) -> None:
        self.name = name
        self.mode = mode
        self.state = "starting"
        self.arena = Arena.create(arena_bytes)
        self.held = Holdings()
        self.costs = CostModel()
        self.batch: Batch | None = None
        self.restarts = 0
        self.started_ns = 0
        self.batches_run = 0
        self.warmed = asyncio.Event()
        self._process = LaneProcess(name, zygote, self._heard, self._died)
        self._trust = trust
        self._watcher = watcher
        self._runs_begun = 0
        self._loop = asyncio.get_running_loop()
        self._early_deaths = 0
        self._answers: list[asyncio.Future[messages.Answer | None]] = []
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        warm, busy = self.held.warm_count, self.batch is not None
        return f"<LaneProxy {self.name} {self.state} pid={self.pid} {warm=} {busy=}>"

    @property
    def pid(self) -> int | None:
        """Of its process; None while that is not known."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether it can take a batch: it has a process that runs none and loads nothing that has to be alone."""
        free = self.batch is None and self.held.load_plan is not None and not self.held.loads.alone
        return free and not self._process.hung_up

    def start(self) -> None:
        """Fork the lane's process."""
        self.state = "starting"
        self.started_ns = time.time_ns()
        argument = {"mode": self.mode, "arena_bytes": self.arena.size_bytes, "trust": self._trust.to_json()}
        try:
            self._process.start(argument, self.arena.descriptor)
        except Exception:
            log.exception("lane cannot be forked", extra={"lane": self.name})
            self._restart_later()

    def load(self, plan: LoadPlan) -> None:
        """Begin to load what the plan says, in its order; nothing where the lane is to stop."""
        if self.state != "stopped":
            self.held.begin(plan)
            self._load_on()

    def extend(self, plan: LoadPlan) -> None:
        """Load what a further plan has, whose numbers go on where those of the lane's own end."""
        if self.state != "stopped":
            self.held.extend(plan)
            self._load_on()

    def retry(self, number: int, file: Path, content: str) -> bool:
        """Load an executable that is cold now, see `Holdings.retry`; whether it will."""
        if self.state == "stopped" or not self.held.retry(number, file, content):
            return False
        self._load_on()
        return True

    def replace(self, trust: Trust) -> None:
        """Put a process with this trust in the place of the one that runs. `warmed` is set once it has tried all.

        What it is doing is not to blame for that, and is done elsewhere.
        """
        self._trust = trust
        self.warmed.clear()
        self.held.mapped.clear()
        self._process.end()

    def give_up(self, error: Exception) -> None:
        """End a process for which the front cannot do what it has to: the next one begins from nothing."""
        self._process.give_up(error)

    def may_cover(self, method: ServedMethod, need: Sizes) -> bool:
        """Whether the lane holds, or may come to hold, an executable that covers the need."""
        return self.state != "stopped" and self.held.may_cover(method, need)

    def submit(self, batch: Batch) -> None:
        """Write a batch into the arena, padded, and run it. The lane has to be idle; it may have died meanwhile."""
        assert self.batch is None, self
        loadable = self.held.loadable(batch.executable.id)
        batch.fill([self.arena.array(region) for region in loadable.inputs])
        batch.sent_ns = time.time_ns()
        self.batch = batch
        self._runs_begun = self.arena.runs_begun
        self._process.send(messages.Run(executable=loadable.candidate.id))

    def results(self, batch: Batch) -> list[np.ndarray]:
        """Views of the results in the arena, valid until the next batch is submitted."""
        return [self.arena.array(region) for region in self.held.loadable(batch.executable.id).outputs]

    async def ask(self, wait_s_max: float) -> messages.Answer | None:
        """What the process says of itself; None if it dies, or is in the middle of a batch for longer."""
        if self.pid is None:
            return None
        answer: asyncio.Future[messages.Answer | None] = self._loop.create_future()
        self._answers.append(answer)
        if len(self._answers) == 1:
            self._process.send(messages.Ask())
        try:
            return await asyncio.wait_for(asyncio.shield(answer), wait_s_max)
        except TimeoutError:
            return None

    async def stop(self, wait_s_max: float) -> None:
        """End the process: first asked, then killed."""
        self.state = "stopped"
        if not self._process.there:
            return
        self._process.send(messages.Stop())
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), wait_s_max)
        except TimeoutError:
            self._process.kill()

    def _heard(self, message: messages.FromLane) -> None:
        match message:
            case messages.Done() | messages.Failed():
                self._settle(message)
            case messages.Warm() | messages.Cold() | messages.Mapped():
                self._acknowledge(message)
            case messages.Loading():
                self.held.loads.begun(message)
            case messages.Hello():
                self._watcher.hello(self, message.fingerprint, message.stages)
            case messages.Answer():
                self._answered(message)

    def _settle(self, message: messages.Done | messages.Failed) -> None:
        batch, self.batch = self.batch, None
        assert batch is not None, self
        if isinstance(message, messages.Failed):
            self._watcher.failed(self, batch, message.reason)
        else:
            self.batches_run += 1
            self._watcher.finished(self, batch, message)
        self._load_more()

    def _answered(self, message: messages.Answer | None) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            if not answer.done():
                answer.set_result(message)

    def _acknowledge(self, message: messages.Warm | messages.Cold | messages.Mapped) -> None:
        self.held.settle(message)
        self._load_more()
        match message:
            case messages.Warm():
                self._watcher.progressed(self, self.held.loadable(message.executable), message.stages)
            case messages.Mapped():
                if message.reason:
                    log.error("weights cannot be mapped", extra={"version": message.version, "reason": message.reason})
                self._watcher.progressed(self, f"weights {message.version}", message.stages)
            case messages.Cold():
                self._watcher.damaged(self, self.held.loadable(message.executable), message.reason)

    def _load_on(self) -> None:
        self.state = "loading"
        self._load_more()

    def _load_more(self) -> None:
        for work in self.held.loads.take(busy=self.batch is not None):
            self._process.send(work)
        if self.held.loaded and self.state == "loading":
            self.state = "warm"
            self.warmed.set()
            self._early_deaths = 0

    def _died(self, status: int | None) -> None:
        replaced = status is None
        self.held.forget(status)
        self.warmed.clear()
        self._answered(None)
        batch, self.batch = self.batch, None
        if batch is not None:
            batch.begun = self.arena.runs_begun > self._runs_begun and not replaced
        if self.state == "stopped":
            if not self._ended.done():
                self._ended.set_result(None)
            if batch is not None:
                self._watcher.failed(self, batch, "the instance is shutting down")
            return
        if replaced:
            log.info("lane is replaced", extra={"lane": self.name})
        else:
            log.error("lane died", extra={"lane": self.name, "status": status})
        self.restarts += 1
        self._restart_later()
        how = "was replaced" if replaced else f"died with status {status}"
        self._watcher.failed(self, batch, f"the {self.name} lane {how}")

    def _restart_later(self) -> None:
        """At once after a lane that had become warm, with growing delays after ones that had not."""
        self.state = "down"
        delay_s = backoff_s(self._early_deaths, RESTART_DELAY_S, RESTART_DELAY_S_MAX)
        self._early_deaths += 1
        self._loop.call_later(delay_s, lambda: self.start() if self.state == "down" else None)
