"""The front's half of a lane: start it, load it, give it batches, notice its death, start it again.

Everything here happens in the event loop's thread, in callbacks that do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from cache.signing import Trust
from warmpool import messages
from warmpool.arena import Arena
from warmpool.backoff import backoff_s
from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.load_queue import LoadQueue
from warmpool.selection import Candidate, Sizes, covers
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
    """One lane, over all the processes that it consists of in its life."""

    def __init__(
        self, name: str, mode: Mode, zygote: StandingZygote, arena_bytes: int, trust: Trust, watcher: Watcher
    ) -> None:
        self.name = name
        self.mode = mode
        self.state = "starting"
        self.pid: int | None = None
        self.arena = Arena.create(arena_bytes)
        self.load_plan: LoadPlan | None = None
        self.warm: defaultdict[ServedMethod, list[Candidate]] = defaultdict(list)
        self.warm_count = 0
        self.batch: Batch | None = None
        self.restarts = 0
        self.started_ns = 0
        self.batches_run = 0
        self.cold_reasons: dict[int, str] = {}
        self.tried: dict[int, str] = {}
        self.warmed = asyncio.Event()
        self.mapped: dict[str, str] = {}
        self._trust = trust
        self._zygote = zygote
        self._watcher = watcher
        self._loads = LoadQueue()
        self._replaced = False
        self._runs_begun = 0
        self._channel: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._early_deaths = 0
        self._answers: list[asyncio.Future[messages.Answer | None]] = []
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return (
            f"<LaneProxy {self.name} {self.state} pid={self.pid} warm={self.warm_count} busy={self.batch is not None}>"
        )

    @property
    def idle(self) -> bool:
        return self.batch is None and self.load_plan is not None and not self._loads.alone and not self._hung_up()

    @property
    def loaded(self) -> bool:
        """Whether everything that it is to hold was tried."""
        return self.load_plan is not None and self._loads.finished

    def minimum(self, model: str) -> list[tuple[Loadable, str | None]]:
        """The model's minimum set in the plan: "" for what is warm, why for what cannot be, None for what will be."""
        if self.load_plan is None:
            return []
        return [
            (loadable, "" if loadable.candidate in self.warm[loadable.method] else self.cold_reasons.get(number))
            for number, loadable in self.load_plan.loadables.items()
            if loadable.minimum and loadable.method.model == model
        ]

    def start(self) -> None:
        """Fork the lane's process."""
        self.state = "starting"
        self.started_ns = time.time_ns()
        try:
            self._channel = self._zygote.current.fork(
                "warmpool.lane:main",
                {"mode": self.mode, "arena_bytes": self.arena.size_bytes, "trust": self._trust.to_json()},
                descriptors=(self.arena.descriptor,),
                orphan=True,  # a lane outlives its zygote: losing the one must not lose the others
            )
        except Exception:
            log.exception("lane cannot be forked", extra={"lane": self.name})
            self._restart_later()
            return
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._readable)

    def load(self, plan: LoadPlan) -> None:
        """Begin to load what the plan says, in its order; nothing where the lane is to stop."""
        if self.state == "stopped":
            return
        self.load_plan = plan
        self.cold_reasons = self._loads.begin(plan)
        self.state = "loading"
        self._load_more()

    def extend(self, plan: LoadPlan) -> None:
        """Load what a further plan has, whose numbers go on where those of the lane's own end."""
        assert self.load_plan is not None
        if self.state == "stopped":
            return
        self.load_plan.loadables |= plan.loadables
        self.load_plan.missing = plan.missing
        self.cold_reasons |= self._loads.extend(plan)
        self.state = "loading"
        self._load_more()

    def gave_up(self, key: str) -> bool:
        """Whether lanes died while they loaded the executable, so that it is not tried now."""
        return self._loads.gave_up(key)

    def deadly(self, key: str) -> frozenset[str]:
        """The contents under a key that lanes certainly died of."""
        return self._loads.deadly(key)

    def is_to_load(self, key: str) -> bool:
        """Whether the lane has yet to open the file of the executable that it was told, or may be about to."""
        return self._loads.holds(key)

    def bytes_max(self, number: int) -> int:
        """How large the artifact of an executable may be."""
        return self.load_plan.loadables[number].message.bytes_max if self.load_plan else 0

    def retry(self, number: int, file: Path, content: str) -> bool:
        """Load an executable that is cold now from a file with this content (its SHA-256).

        Returns:
            Whether it will; not if that very content is what this process tried, or while it has no weights for it.
        """
        assert self.load_plan is not None
        loadable = self.load_plan.loadables[number]
        without_weights = not self.mapped.get(loadable.message.version)
        if self.state == "stopped" or without_weights or self.tried.get(number) == content:
            return False
        del self.cold_reasons[number]
        self.tried[number] = content
        self._loads.add(
            msgspec.structs.replace(loadable.message, artifact_path=os.fspath(file)), minimum=loadable.minimum
        )
        self.state = "loading"
        self._load_more()
        return True

    def replace(self, trust: Trust) -> None:
        """Put a process with this trust in the place of the one that runs. `warmed` is set once it has tried all.

        What it is doing is not to blame for that, and is done elsewhere.
        """
        self._trust = trust
        self.warmed.clear()
        self.mapped.clear()
        self._replaced = self._channel is not None
        self._end_replaced()

    def may_cover(self, method: ServedMethod, need: Sizes) -> bool:
        """Whether the lane holds, or may come to hold, an executable that covers the need."""
        if self.state == "stopped":
            return False
        if self.load_plan is None:
            return True
        return any(
            loadable.method is method and number not in self.cold_reasons and covers(loadable.candidate.bucket, need)
            for number, loadable in self.load_plan.loadables.items()
        )

    def submit(self, batch: Batch) -> None:
        """Write a batch into the arena, padded, and run it. The lane has to be idle; it may have died meanwhile."""
        assert self.batch is None, self
        assert self.load_plan is not None
        loadable = self.load_plan.loadables[batch.executable.id]
        batch.fill([self.arena.array(region) for region in loadable.inputs])
        batch.sent_ns = time.time_ns()
        self.batch = batch
        self._runs_begun = self.arena.runs_begun
        self._send(messages.Run(executable=loadable.candidate.id))

    def results(self, batch: Batch) -> list[np.ndarray]:
        """Views of the results in the arena, valid until the next batch is submitted."""
        assert self.load_plan is not None
        return [self.arena.array(region) for region in self.load_plan.loadables[batch.executable.id].outputs]

    async def ask(self, wait_s_max: float) -> messages.Answer | None:
        """What the process says of itself; None if it dies, or is in the middle of a batch for longer."""
        if self._channel is None or self.pid is None:
            return None
        answer: asyncio.Future[messages.Answer | None] = self._loop.create_future()
        self._answers.append(answer)
        if len(self._answers) == 1:
            self._send(messages.Ask())
        try:
            return await asyncio.wait_for(asyncio.shield(answer), wait_s_max)
        except TimeoutError:
            return None

    async def stop(self, wait_s_max: float) -> None:
        """End the process: first asked, then killed."""
        self.state = "stopped"
        if self._channel is None:
            return
        self._send(messages.Stop())
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), wait_s_max)
        except TimeoutError:
            if self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)

    def _readable(self) -> None:
        assert self._channel is not None
        while self._channel is not None:
            try:
                data = self._channel.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionResetError:  # told once, of what it left unread: what it said before comes all the same
                continue
            try:
                self._received(messages.decode_from_lane(data) if data else messages.Gone(exit=-signal.SIGKILL))
            except Exception as error:  # noqa: BLE001  it is logged
                self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """End a process about which the front knows no more what is so: the next one begins from nothing."""
        log.error("what a lane said cannot be dealt with", exc_info=error, extra={"lane": self.name})
        if self._channel is None:  # it was its death that could not be dealt with, and the next one is on its way
            return
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._died(-signal.SIGKILL)

    def _received(self, message: messages.FromLane | messages.Born | messages.Gone) -> None:
        match message:
            case messages.Done() | messages.Failed():
                self._settle(message)
            case messages.Warm() | messages.Cold() | messages.Mapped():
                self._loads.settle(message)
                self._acknowledge(message)
            case messages.Loading():
                self._loads.begun(message)
            case messages.Hello():
                self._watcher.hello(self, message.fingerprint, message.stages)
            case messages.Answer():
                self._answered(message)
            case messages.Born():
                self.pid = message.pid
                self._end_replaced()
            case messages.Gone():
                self._died(message.exit)

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
        assert self.load_plan is not None
        self._load_more()
        match message:
            case messages.Warm():
                loadable = self.load_plan.loadables[message.executable]
                self.warm[loadable.method].append(loadable.candidate)
                self.warm_count += 1
                self._watcher.progressed(self, loadable, message.stages)
            case messages.Mapped():
                self.mapped[message.version] = message.identity
                if message.reason:
                    log.error("weights cannot be mapped", extra={"version": message.version, "reason": message.reason})
                self._watcher.progressed(self, f"weights {message.version}", message.stages)
            case messages.Cold():
                loadable = self.load_plan.loadables[message.executable]
                self.cold_reasons[message.executable] = message.reason
                if message.content:
                    self.tried[message.executable] = message.content
                self._watcher.damaged(self, loadable, message.reason)

    def _load_more(self) -> None:
        for work in self._loads.take(busy=self.batch is not None):
            self._send(work)
        if self.loaded and self.state == "loading":
            self.state = "warm"
            self.warmed.set()
            self._early_deaths = 0

    def _send(self, message: messages.FromFront) -> None:
        assert self._channel is not None
        # Where it has died, reading its end of file is about to handle everything.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(messages.encode(message))

    def _hung_up(self) -> bool:
        """Whether the process is known to be gone, before the loop comes to read that."""
        if self._channel is None:
            return True
        try:
            next_message = self._channel.recv(32, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        return not next_message or next_message.startswith(b'{"exit"')

    def _died(self, status: int) -> None:
        assert self._channel is not None
        self._loop.remove_reader(self._channel)
        self._channel.close()
        replaced, self._replaced = self._replaced, False
        self._channel, self.pid, self.load_plan = None, None, None
        self.warm.clear()
        self.warm_count = 0
        self.cold_reasons.clear()
        self.tried.clear()
        self.warmed.clear()
        self.mapped.clear()
        self._loads.died(None if replaced else status)
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

    def _end_replaced(self) -> None:
        """Kill the process that is to be replaced, as soon as it is known by number."""
        if self._replaced and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # its end is about to be read
                os.kill(self.pid, signal.SIGKILL)

    def _restart_later(self) -> None:
        """At once after a lane that had become warm, with growing delays after ones that had not."""
        self.state = "down"
        delay_s = backoff_s(self._early_deaths, RESTART_DELAY_S, RESTART_DELAY_S_MAX)
        self._early_deaths += 1
        self._loop.call_later(delay_s, lambda: self.start() if self.state == "down" else None)
