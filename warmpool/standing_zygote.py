"""One living zygote at any time: the front notices its death and starts the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from warmpool.backoff import backoff_s
from warmpool.forking import Preload, Zygote
from warmpool.messages import Stage

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
DELAY_S_MAX = 5.0


class StandingZygote:
    """The zygote that lanes are forked from. Lives in the event loop's thread."""

    def __init__(self, zygote: Zygote, preload: Preload, started: Callable[[list[Stage]], None]) -> None:
        self.current = zygote
        self.ready_ns = 0
        self._preload = preload
        self._started = started
        self._early_deaths = 0
        self._watched = False
        self._closing = False

    def watch(self) -> None:
        """Begin to listen to it."""
        self.ready_ns = 0
        self.current.control.setblocking(False)
        asyncio.get_running_loop().add_reader(self.current.control, self._readable)
        self._watched = True

    def close(self) -> None:
        """End it, for good. Waits for its process."""
        self._closing = True
        self.current.close()

    def unwatch(self) -> None:
        """Stop listening. Idempotent."""
        self._closing = True
        if self._watched:
            asyncio.get_running_loop().remove_reader(self.current.control)
            self._watched = False

    def _readable(self) -> None:
        stages = self.current.read_stages()
        if stages is not None:
            self.ready_ns = stages[-1][2]
            self._early_deaths = 0
            self._started([Stage(*stage) for stage in stages])
            return
        asyncio.get_running_loop().remove_reader(self.current.control)
        self._watched = False
        if not self._closing:
            self._early_deaths += not self.ready_ns
            self.current.process.kill()  # its socket is closed, so it is dead or as good as dead
            self._replace_later()

    def _replace_later(self) -> None:
        delay_s = backoff_s(self._early_deaths, FIRST_DELAY_S, DELAY_S_MAX)
        log.error("zygote died; starting another", extra={"in_s": delay_s})
        asyncio.get_running_loop().call_later(delay_s, self._replace)

    def _replace(self) -> None:
        if self._closing:
            return
        self.current.close(wait_s_max=0.1)
        try:
            self.current = Zygote.start(self._preload)
        except OSError:
            log.exception("zygote cannot be started")
            self._early_deaths += 1
            self._replace_later()
            return
        self.watch()
