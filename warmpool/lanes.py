"""The front's half of a lane: start it, load it, give it batches, notice its death, start it again.

Everything here happens in the event loop's thread, in callbacks that do not wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cache.signing import Trust
from warmpool import messages
from warmpool.arena import Arena
from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.holdings import Holdings
from warmpool.lane_life import LaneLife
from warmpool.lane_memory import LaneMemory
from warmpool.lane_process import Ended
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.scheduling.cost_model import CostModel
from warmpool.selection import Sizes
from warmpool.sent_batches import SentBatches
from warmpool.standing_zygote import StandingZygote
from warmpool.watchdog import Cause, Limits
from warmpool.watcher import Watcher

if TYPE_CHECKING:
    from cache.executable import Mode

log = logging.getLogger(__name__)


class LaneProxy:
    """One lane, over all the processes that it consists of in its life.

    Attributes:
        held: What it holds, and is to.
        costs: What its batches take.
        memory: What comes back, and what goes for it.
        life: Its processes, one after the other.
        warmed: Is set once everything was tried.
    """

    def __init__(
        self,
        name: str,
        mode: Mode,
        zygote: StandingZygote,
        trust: Trust,
        watcher: Watcher,
        arena_bytes: int,
        memory_bytes_max: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.mode = mode
        self.arena = Arena.create(arena_bytes)
        self.held = Holdings()
        self.costs = CostModel()
        self.memory = LaneMemory(self.held, self.costs)
        self.batches_run = 0
        self.warmed = asyncio.Event()
        self.limits = limits or Limits()
        self.life = LaneLife(name, mode, zygote, self.limits, self._begin, self._heard, self._ended)
        self._trust = trust
        self._watcher = watcher
        self._memory_bytes_max = memory_bytes_max
        self._sent = SentBatches(self.arena)
        self._look: asyncio.Handle | None = None
        self._deciding = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<LaneProxy {self.name} {self.state} pid={self.pid} warm={self.held.warm_count} {self.batch=}>"

    @property
    def state(self) -> str:
        """See `LaneLife`."""
        return self.life.state

    @property
    def started_ns(self) -> int:
        """See `LaneLife`."""
        return self.life.started_ns

    @property
    def pid(self) -> int | None:
        """Of its process; None while that is not known."""
        return self.life.process.pid

    @property
    def batch(self) -> Batch | None:
        """The one that it runs."""
        return self._sent.running

    @property
    def methods(self) -> set[ServedMethod]:
        """Of what it runs, and is to run next."""
        return self._sent.methods

    @property
    def idle(self) -> bool:
        """Whether it can take a batch: it has a process that runs none and loads nothing that has to be alone."""
        return not self._sent and self._takes_more

    @property
    def may_stage(self) -> bool:
        """Whether it can take a batch while it runs one: that ends soon, and nothing is to be decided then."""
        return self._sent.end_soon and not self.memory.undecided and self._takes_more

    @property
    def _takes_more(self) -> bool:
        free = not self._deciding and self.held.load_plan is not None and not self.held.loads.alone
        return free and not self.life.process.hung_up

    def start(self) -> None:
        """Fork the lane's process."""
        self.life.start()

    def load(self, plan: LoadPlan) -> None:
        """Begin to load what the plan says, in its order; nothing where the lane is to stop."""
        if self.state != "stopped":
            self.held.begin(plan)
            self._load_on(plan.arena_bytes)

    def extend(self, plan: LoadPlan) -> None:
        """Load what a further plan has, whose numbers go on where those of the lane's own end."""
        if self.state != "stopped":
            self.held.extend(plan)
            self._load_on(plan.arena_bytes)
            self.memory.ask_for_minimum(plan.loadables)
            self._make_room()

    def retry(self, number: int, file: Path, content: str) -> bool:
        """Load an executable that is cold now, see `Holdings.retry`; whether it will."""
        if self.state == "stopped" or not self.held.retry(number, file, content):
            return False
        self.memory.ask_for_minimum([number])
        self._load_on()
        self._make_room()
        return True

    def want(self, method: ServedMethod, need: Sizes) -> bool:
        """Have an executable that covers a need come back, see `LaneMemory.ask`; whether there is, or will be, one."""
        self._look_at(self._loop.time())
        return self.state != "stopped" and self.memory.ask(method, need)

    def pass_over(self, batch: Batch) -> None:
        """A batch is to run on another lane, which would have run on this one if it had not let go of so much."""
        self.memory.passes(batch.method, batch.need, batch.predicted_us)
        if self.memory.undecided:
            self._look_at(self._loop.time())

    def retire(self, numbers: Iterable[int]) -> None:
        """Forget executables for good, those that it knows: no batch gets them, and they go when none runs on them."""
        self.held.retire(number for number in numbers if self.held.knows(number))
        self._load_more()
        self._watcher.cooled(self)

    def part_with(self, version: str) -> None:
        """Forget a version (by key) for good; nothing of it runs, or ever will."""
        self.held.part_with(version)
        self._load_more()
        self._watcher.cooled(self)

    def replace(self, trust: Trust) -> None:
        """Put a process with this trust in the place of this one, which is not to blame; `warmed` is set anew."""
        self._trust = trust
        self.warmed.clear()
        self.held.mapped.clear()
        self.life.process.end(Cause.REPLACED)

    def may_cover(self, method: ServedMethod, need: Sizes) -> bool:
        """Whether the lane holds, or may soon come to hold, an executable that covers the need."""
        return self.state != "stopped" and not self.life.why_down() and self.held.may_cover(method, need)

    def submit(self, batch: Batch) -> None:
        """Write a batch into the arena, padded, and run it, right after the one that runs.

        The lane has to be idle, or `may_stage`; it may have died meanwhile.
        """
        loadable = self.held.loadable(batch.executable.id)
        half = self._sent.write(batch, loadable)
        bound_us = self.costs.bound_us(batch.method, batch.executable)
        self.life.process.send(messages.Run(loadable.candidate.id, half), self.limits.run_s(bound_us))
        self.memory.runs(loadable.candidate.id, batch.need, batch.waiting_rows, self._loop.time())

    def results(self, batch: Batch) -> list[np.ndarray]:
        """Views of the results of the batch that ended last, valid until the next one is submitted."""
        return self._sent.results(batch)

    async def ask(self, wait_s_max: float) -> messages.Answer | None:
        """What the process says of itself; None if it dies, or is in the middle of a batch for longer."""
        return await self.life.process.ask(wait_s_max)

    async def stop(self, wait_s_max: float) -> None:
        """End the process: first asked, then killed."""
        await self.life.stop(wait_s_max)

    def _begin(self) -> tuple[messages.Begin, int]:
        return messages.Begin(self.arena.size_bytes, self._trust.to_json()), self.arena.descriptor

    def _heard(self, message: messages.FromLane) -> None:
        match message:
            case messages.Done() | messages.Failed():
                self._settle(message)
            case messages.Loading():
                self.held.loads.begun(message)
            case messages.Hello():
                self.held.bytes_max = self._memory_bytes_max or message.memory_bytes_max
                self._watcher.hello(self, message.fingerprint, message.stages)
            case messages.Mapped() | messages.Warm() | messages.Cold() | messages.Unloaded() | messages.Unmapped():
                self._acknowledge(message)

    def _settle(self, message: messages.Done | messages.Failed) -> None:
        end_ns = message.end_ns if isinstance(message, messages.Done) else time.time_ns()
        batch, loadable = self._sent.over(end_ns)
        self._deciding = self.memory.undecided  # then no batch begins before that is done
        if isinstance(message, messages.Failed):
            if smaller := message.out_of_memory:  # may do, unless the memory is gone
                self._short(loadable, message.reason)
                if gone := self.memory.ran_short(self._loop.time()):
                    self.life.process.end(Cause.OUT_OF_MEMORY, gone)
                    smaller = False
            self._watcher.failed(self, batch, message.reason, out_of_memory=smaller)
        else:
            self.batches_run += 1
            self._watcher.finished(self, batch, message)
        decided, self._deciding = self._deciding, False
        if not self._make_room() and decided:
            self._watcher.cooled(self)

    def _acknowledge(self, message: messages.Settled) -> None:
        self.held.settle(message, self._loop.time())
        self._make_room()
        match message:
            case messages.Warm() if self.held.is_warm(message.executable):
                self._watcher.progressed(self, self.held.loadable(message.executable), message.stages)
            case messages.Mapped():
                if message.reason:
                    log.error("weights cannot be mapped", extra={"version": message.version, "reason": message.reason})
                self._watcher.progressed(self, f"weights {message.version}", message.stages)
            case messages.Cold(out_of_memory=True) if self.held.knows(message.executable):
                self._short(self.held.loadable(message.executable), message.reason)
                self._watcher.cooled(self)
            case messages.Cold() if self.held.knows(message.executable):
                self._watcher.damaged(self, self.held.loadable(message.executable), message.reason)

    def _short(self, loadable: Loadable, reason: str) -> None:
        log.error("out of memory", extra={"lane": self.name, "executable": loadable.title, "reason": reason})
        self.memory.short(loadable, reason, self._loop.time())
        self._look_at(self._loop.time())

    def _look_at(self, time_s: float) -> None:
        """See next at this time what can come."""
        if self._look is not None:
            self._look.cancel()
        self._look = self._loop.call_at(time_s, self._make_room)

    def _make_room(self) -> bool:
        """Let come what may by now, and let go what has to for that; whether anything did."""
        now_s = self._loop.time()
        cooled = self.memory.make_room(self._sent.executables, now_s)
        self._load_more()
        if cooled:
            self._watcher.cooled(self)
        if (again_s := self.memory.again_s(now_s)) < math.inf:
            self._look_at(again_s)
        return cooled

    def _load_on(self, arena_bytes: int = 0) -> None:
        if self.arena.grow(arena_bytes):
            self.life.process.send(messages.Grow(arena_bytes=self.arena.size_bytes))
        self.life.state = "loading"
        self._load_more()

    def _load_more(self) -> None:
        for work in self.held.loads.take(running=self._sent.executables):
            self.life.process.send(work)
        if self.held.loaded and self.state == "loading":
            self.life.warmed()
            self.warmed.set()

    def _ended(self, ended: Ended) -> None:
        self.held.forget(ended.status if ended.of_a_load(had_warm=bool(self.held.warm_count)) else None)
        self.memory.forget()
        self.warmed.clear()
        batches: list[Batch | None] = [*self._sent.abandon(blameless=ended.cause is Cause.REPLACED)]
        self._deciding, stopped = False, self.state == "stopped"
        reason = "the instance is shutting down" if stopped else f"the {self.name} lane {ended}"
        for batch in batches or ([] if stopped else [None]):
            self._watcher.failed(self, batch, reason)
