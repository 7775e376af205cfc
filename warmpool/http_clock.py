"""The time that a connection has, for one thing at a time. It is set with every request, so that has to cost little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

EARLY_S = 0.002  # by so much a loop's timers may be early


class Clock:
    """Calls when a time is over. Its timer stays when the time is put off, and looks again when it rings.

    Attributes:
        what: What there is time for; "" while it stands still.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self._loop = asyncio.get_running_loop()
        self.what = ""
        self._due_s = inf
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = inf

    def start(self, what: str, within_s: float) -> None:
        """There is so much time for something, and for nothing else any more."""
        self.what, self._due_s = what, self._loop.time() + within_s
        if self._due_s < self._rings_s:
            self._ring_at(self._due_s)

    def stop(self) -> None:
        """Nothing has to be done within any time."""
        self.what, self._due_s = "", inf

    def close(self) -> None:
        """It is not needed any more."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _ring_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_s = self._loop.call_at(time_s, self._ring), time_s

    def _ring(self) -> None:
        self._timer, self._rings_s = None, inf
        if self._due_s <= self._loop.time() + EARLY_S:
            self.stop()
            self._over()
        elif self._due_s < inf:
            self._ring_at(self._due_s)
