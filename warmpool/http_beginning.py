"""The beginning of an answer, sent byte by byte to find out whether somebody still listens."""

from __future__ import annotations

import asyncio

BEGINNING = b"HTTP/1.1 "
BEGIN_S = (0.001, 0.01, 0.05, 0.2, 1.0, 5.0, 15.0, 60.0)  # from each byte of the beginning to the next one


class Beginning:
    """Of one answer, which is still to come."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begun = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Send a byte of it, and later the next one."""
        if self._transport.is_closing():
            return
        self._transport.write(BEGINNING[self._begun : self._begun + 1])
        self._begun += 1
        if self._begun < len(BEGINNING):
            delay_s = BEGIN_S[self._begun - 1]
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.begin)

    def end(self) -> int:
        """Send no more; how many bytes are out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._begun
