"""What listens for HTTP, and ends in order: nobody new, then those that have their answers, then all."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from typing import Any

from warmpool.http_protocol import HttpProtocol
from warmpool.http_routes import Handler

log = logging.getLogger(__name__)

BACKLOG = 2048
TAKE_MS_MAX = 30_000  # who takes nothing of what is sent to it for so long is cut off, by the kernel: it knows best


class HttpServer:
    """Connections and the requests on them.

    Args:
        answer: Answers every request.
        keep_alive_s: How long a connection may be idle.
    """

    def __init__(self, answer: Handler, keep_alive_s: float) -> None:
        self.answer = answer
        self.keep_alive_s = keep_alive_s
        self.connections: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.ending = False
        self._over = asyncio.Event()
        self._listening: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Take connections from now on."""
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TAKE_MS_MAX)  # connections inherit it
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: HttpProtocol(self), sock=listener, backlog=BACKLOG)

    async def drain(self, wait_s_max: float) -> None:
        """Take none any more, close them when they are idle or have their answers; cancel what takes longer."""
        self.ending = True
        if self._listening is not None:
            self._listening.close()
        for connection in [*self.connections]:
            connection.shutdown()
        try:
            async with asyncio.timeout(wait_s_max):
                while self.connections or self.tasks:
                    self._over.clear()
                    await self._over.wait()
        except TimeoutError:
            log.warning("requests are cancelled", extra={"requests": len(self.tasks), "waited_s": wait_s_max})
            for task in [*self.tasks]:
                task.cancel()

    def start(self, work: Coroutine[Any, Any, None], *, at_once: bool) -> None:
        """Run what answers a request: `at_once` up to where it waits for something, or in the loop's next turn."""
        task = asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=at_once)
        if task.done():
            self._ended(task)
        else:
            self.tasks.add(task)
            task.add_done_callback(self._ended)

    def lost(self, connection: HttpProtocol) -> None:
        """A connection is gone. Idempotent."""
        self.connections.discard(connection)
        self._over.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._over.set()
