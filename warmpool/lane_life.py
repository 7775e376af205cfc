"""The processes that a lane consists of, one after the other: each is started, watched, counted when it ends.

Everything here happens in the event loop's thread, in callbacks that do not wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warmpool import messages
from warmpool.backoff import backoff_s
from warmpool.circuit import RESTART_S, RESTART_S_MAX, Circuit
from warmpool.lane_process import Ended, LaneProcess
from warmpool.standing_zygote import StandingZygote
from warmpool.watchdog import Cause, Limits

if TYPE_CHECKING:
    from cache.executable import Mode

log = logging.getLogger(__name__)


class LaneLife:
    """The life of one lane.

    Args:
        name: Of the lane.
        mode: How its processes open their device.
        zygote: Forks them.
        limits: How long they may take for what.
        begin: What the next one is told first, and the descriptor that goes with it.
        heard: Is told each message of the present one.
        ended: Is told of its end. By then it is decided when the next one starts, unless the lane was stopped.

    Attributes:
        state: "starting", "loading", "warm", "down" or "stopped".
        started_ns: When the present process was asked for, since the epoch; 0 before the first.
        process: The present one.
        circuit: Whether it is started again.
        ends: How many ended of what, though the lane was not stopped.
        last: The last of these ends.
    """

    def __init__(
        self,
        name: str,
        mode: Mode,
        zygote: StandingZygote,
        limits: Limits,
        begin: Callable[[], tuple[messages.Begin, int]],
        heard: Callable[[messages.FromLane], None],
        ended: Callable[[Ended], None],
    ) -> None:
        self.state = "starting"
        self.started_ns = 0
        self.process = LaneProcess(name, zygote, limits, self._heard, self._ended)
        self.circuit = Circuit()
        self.ends: Counter[Cause] = Counter()
        self.last: Ended | None = None
        self._name = name
        self._mode: Mode = mode
        self._zygote = zygote
        self._begin = begin
        self._tell_heard = heard
        self._tell_ended = ended
        self._unforked = 0
        self._platform = ""
        self._loop = asyncio.get_running_loop()

    @property
    def restarts(self) -> int:
        """How often a process ended though the lane was not stopped."""
        return self.ends.total()

    def start(self) -> None:
        """Fork the next process."""
        self.state = "starting"
        self.started_ns = time.time_ns()
        self.circuit.tried()
        try:
            self.process.start(self._mode, *self._begin())
        except Exception:
            log.exception("lane cannot be forked", extra={"lane": self._name})
            self._start_later(backoff_s(self._unforked, RESTART_S, RESTART_S_MAX))
            self._unforked += 1
        else:
            self._unforked = 0

    def warmed(self) -> None:
        """The lane has tried everything that it is to hold.

        So there is time to have the next process wait, should this one die. Only where its device is the CPU: on an
        accelerator, two clients would share the memory.
        """
        self.state = "warm"
        self.circuit.warmed()
        if self._mode == "jaxlib":
            self._zygote.fork_ahead(self._mode)

    async def stop(self, wait_s_max: float) -> None:
        """End it for good: first asked, then killed."""
        self.state = "stopped"
        await self.process.stop(wait_s_max)

    def describe(self) -> dict[str, Any]:
        """For a status document."""
        return {
            "restarts": self.restarts,
            "ended": dict(self.ends),
            "last_end": str(self.last) if self.last else "",
            "circuit": self.circuit.describe(self._loop.time()),
        }

    def why_down(self) -> str:
        """Why the lane stays down for now, "" if it does not."""
        why = self.circuit.why_down(self._loop.time())
        return f"the {self._name} lane is down: {why}" if why else ""

    def _heard(self, message: messages.FromLane) -> None:
        match message:
            case messages.Hello() if self._lost(message.fingerprint.get("platform", "")):
                self.process.end(Cause.DEVICE_LOST, f"it came up on a CPU and not on {self._platform} as before")
                return
            case messages.Hello() if self._mode == "jax" and self._platform == "cpu":
                log.warning("jax found no accelerator: the lane runs on the CPU", extra={"lane": self._name})
            case messages.Done() | messages.Failed() | messages.Answer() if self.state == "warm":
                self.circuit.answered(self._loop.time())
        self._tell_heard(message)

    def _lost(self, platform: str) -> bool:
        """Whether there is no accelerator where there was one: jax then takes the CPU."""
        first, self._platform = self._platform, self._platform or platform
        return platform == "cpu" and first not in {"", "cpu"}

    def _ended(self, ended: Ended) -> None:
        if self.state != "stopped":
            self.ends[ended.cause] += 1
            self.last = ended
            replaced = ended.cause is Cause.REPLACED
            log.log(
                logging.INFO if replaced else logging.ERROR,
                "lane is replaced" if replaced else "lane died",
                extra={"lane": self._name, "cause": str(ended.cause), "status": ended.status, "reason": ended.detail},
            )
            delay_s = 0.0 if replaced else self.circuit.failed(str(ended), self._loop.time())
            if why := self.why_down():
                log.error("circuit is open", extra={"lane": self._name, "reason": why})
            self._start_later(delay_s)
        self._tell_ended(ended)

    def _start_later(self, delay_s: float) -> None:
        self.state = "down"
        self._loop.call_later(delay_s, lambda: self.start() if self.state == "down" else None)
