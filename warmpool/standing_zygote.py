"""One living zygote at any time: the front notices its death, and that it does not answer, and starts the next."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from warmpool.backoff import backoff_s
from warmpool.errors import WarmpoolError
from warmpool.forking import Preload, Zygote
from warmpool.messages import Stage
from warmpool.watchdog import ANSWER, LOOK_S, START, Cause, Limits, Watchdog

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
DELAY_S_MAX = 5.0


class StandingZygote:
    """The zygote that lanes are forked from. Lives in the event loop's thread.

    It is asked how it is whether a lane is to be forked or not: it is also what tells that a lane has ended.

    Args:
        zygote: The first one.
        preload: What the others import.
        started: Is told what took how long, of each.
        limits: How long it may take to start, and to answer.

    Attributes:
        ends: How many ended of what.
    """

    def __init__(
        self,
        zygote: Zygote,
        preload: Preload,
        started: Callable[[list[Stage]], None],
        limits: Limits | None = None,
    ) -> None:
        self.current = zygote
        self.ready_ns = 0
        self.ends: Counter[Cause] = Counter()
        self._preload = preload
        self._started = started
        self._limits = limits or Limits()
        self._watchdog = Watchdog(self._limits.ask_every_s)
        self._hung: Cause | None = None
        self._early_deaths = 0
        self._ahead: set[str] = set()  # the modes of which a process is to wait
        self._leaving: list[Zygote] = []  # replaced, killed, and not yet reaped
        self._watched = False
        self._closing = False

    def watch(self) -> None:
        """Begin to listen to it."""
        loop = asyncio.get_running_loop()
        self.ready_ns = 0
        self._hung = None
        self._watchdog = Watchdog(self._limits.ask_every_s)
        self._watchdog.lend(self._limits.start, loop.time())
        self.current.control.setblocking(False)
        loop.add_reader(self.current.control, self._readable)
        self._watched = True
        loop.call_later(LOOK_S, self._look, self.current)

    def fork_ahead(self, mode: str) -> None:
        """As `Zygote.fork_ahead`, by the next zygotes, too. Raises nothing: a lane can be forked when it dies."""
        self._ahead.add(mode)
        with contextlib.suppress(WarmpoolError, OSError):  # no zygote: another is on its way; or no file to be had
            self.current.fork_ahead(mode)

    def close(self) -> None:
        """End it, for good. Waits for its process, and for those of earlier ones, as long as `Zygote.close` does."""
        self._closing = True
        self.current.close()
        for zygote in self._leaving:
            zygote.close(wait_s_max=0.0)

    def unwatch(self) -> None:
        """Stop listening. Idempotent."""
        self._closing = True
        if self._watched:
            asyncio.get_running_loop().remove_reader(self.current.control)
            self._watched = False

    def describe(self) -> dict[str, Any]:
        """For a status document."""
        return {"pid": self.current.process.pid, "ended": dict(self.ends)}

    def _look(self, zygote: Zygote) -> None:
        """See whether it owes something for too long, and ask it how it is, as long as it is this one."""
        if zygote is not self.current or not self._watched:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if overdue := self._watchdog.look(now_s):
            if self._hung is None:
                log.error("zygote is ended", extra={"cause": str(overdue.cause), "reason": overdue.detail})
            self._hung = overdue.cause
            zygote.process.kill()  # that its socket closes is about to be read
        elif self._watchdog.to_ask(now_s):
            zygote.ask()
            self._watchdog.lend(self._limits.answer, now_s)
        loop.call_later(LOOK_S, self._look, zygote)

    def _readable(self) -> None:
        stages = self.current.read_stages()
        if stages is not None:
            self._watchdog.paid(START if stages else ANSWER, asyncio.get_running_loop().time())
            if stages:
                self.ready_ns = stages[-1][2]
                self._early_deaths = 0
                self._started([Stage(*stage) for stage in stages])
            return
        asyncio.get_running_loop().remove_reader(self.current.control)
        self._watched = False
        if not self._closing:
            self._early_deaths += not self.ready_ns
            self.ends[self._hung or Cause.KILLED] += 1
            self.current.process.kill()  # its socket is closed, so it is dead or as good as dead
            self._replace_later()

    def _replace_later(self) -> None:
        delay_s = backoff_s(self._early_deaths, FIRST_DELAY_S, DELAY_S_MAX)
        log.error("zygote died; starting another", extra={"in_s": delay_s})
        asyncio.get_running_loop().call_later(delay_s, self._replace)

    def _replace(self) -> None:
        if self._closing:
            return
        self.current.hang_up()
        try:
            replacement = Zygote.start(self._preload)
        except OSError:
            log.exception("zygote cannot be started")
            self._early_deaths += 1
            self._replace_later()
            return
        self._leaving.append(self.current)
        self._reap(self.current)
        self.current = replacement
        self.watch()
        for mode in self._ahead:
            self.fork_ahead(mode)

    def _reap(self, zygote: Zygote) -> None:
        """Have the system forget one that was replaced, once it has ended: nobody waits for that, it may take long.

        Its socket is closed, so all that it may still do is end. What is left at the end is left to `close`.
        """
        if self._closing:
            return
        if zygote.process.poll() is None:
            asyncio.get_running_loop().call_later(LOOK_S, self._reap, zygote)
        else:
            self._leaving.remove(zygote)
