"""One HTTP/1.1 connection: what comes is bounded, and each answer goes out in one piece.

Anyone may connect. So heads have a size and a time, an upgrade that nobody takes up is a request like any other, a
caller that has closed its sending half may still listen, and what is no HTTP is told so when the requests before it
have their answers.

A caller that leaves is noticed while its request waits, and the request's `Caller` is told. A connection that is reset
says so. One that was closed only says that nothing more will be sent, as one that still listens does; but whoever has
closed it refuses what is sent to it. So the answer is begun: each of its first bytes, which are the same for all
answers, goes out alone, and who still listens finds them in their place. Not noticed is who leaves more requests behind
on the same connection than the one that is answered: what comes after that one is not read yet.

A request's work begins in the very turn in which it has come, and its answer is written in one piece: every further
turn, and every further piece, costs its caller time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from warmpool.http_beginning import Beginning
from warmpool.http_clock import Clock
from warmpool.http_head import CONTINUE, head_of
from warmpool.http_messages import Request, Response, json_response
from warmpool.http_parser import FIELD_BYTES, HEAD_BYTES_MAX, HeadTooLarge, NotHttp, RequestParser
from warmpool.http_routes import Handler

log = logging.getLogger(__name__)

HEAD_S_MAX = 30.0
UNREAD_BYTES_MAX = 1 << 16  # of a body: more of it waits in the socket until somebody takes that


class Host(Protocol):
    """What a connection needs of its server."""

    answer: Handler
    keep_alive_s: float
    connections: set[HttpProtocol]
    ending: bool

    def start(self, work: Coroutine[Any, Any, None], *, at_once: bool) -> None:
        """Run what answers a request."""

    def lost(self, connection: HttpProtocol) -> None:
        """A connection is gone."""


class HttpProtocol(asyncio.Protocol):
    """One connection.

    At any moment one of three clocks runs for it: while a request is answered, that request's own deadline; between
    requests the one for idle connections; and from the first byte of a request until its head is there, or from the
    first byte of a body that came after its answer until its end, HEAD_S_MAX in all. Where more is to be sent than its
    caller takes, nothing goes on until it does; how long that may be is the server's matter.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self._parser = RequestParser(self, self._wanted)
        self._coming: Request | None = None  # the last one that came, or is coming
        self._starting: Request | None = None  # its work begins when the parser has done its own
        self._running: Request | None = None  # the one that is answered
        self._waiting: deque[Request] = deque()  # those that came behind it
        self._refusal: Response | None = None  # what is told when those before it have their answers
        self._beginning: Beginning | None = None
        self._writable: asyncio.Future[None] | None = None  # where too much waits to be sent
        self._reading = True
        self._went_on = False  # whether the caller of what is coming was told to
        self._half_closed = False

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._clock = transport, Clock(self._time_is_over)
        self._host.connections.add(self)
        self._clock.start("idle", self._host.keep_alive_s)
        if self._host.ending:  # it was taken in the turn in which that began
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._clock.close()
        self._parser.close()
        if self._beginning is not None:
            self._beginning.end()
        if self._running is not None:
            self._running.leave()
            self._running.caller.leave()
        self._waiting.clear()
        self.resume_writing()
        self._host.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._clock.what == "idle":
            self._clock.stop()
        try:
            self._parser.feed(data)
        except HeadTooLarge:
            allowed = f"{HEAD_BYTES_MAX}, {FIELD_BYTES} for each field among them"
            self._refuse(431, f"head: more than {HEAD_BYTES_MAX} bytes, allowed: {allowed}")
        except NotHttp:
            self._refuse(400, "what came is not HTTP/1.1")
        else:
            if self._running is None and not self._clock.what:
                self._clock.start("head", HEAD_S_MAX)
        if (starting := self._starting) is not None:
            self._starting = None
            self._host.start(self._answer(starting), at_once=True)

    def eof_received(self) -> bool:
        """Whether the connection stays open: the caller that sent whole requests may only have closed its half."""
        whole = self._running is not None and self._coming is not None and self._coming.ended
        self._half_closed = self._refusal is not None or whole
        if self._half_closed:
            self._begin_answer()
        return self._half_closed

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # What the parser calls

    def request_begun(self, request: Request) -> None:
        self._clock.stop()
        self._coming, self._went_on = request, False
        if self._running is None:
            self._running = self._starting = request
        else:
            self._waiting.append(request)
            self._read(on=False)

    def body_came(self, piece: bytes) -> None:
        request = self._coming
        assert request is not None
        if not request.answered:
            request.feed(piece)
            if request.unread_bytes > UNREAD_BYTES_MAX:
                self._read(on=False)

    def request_ended(self) -> None:
        assert self._coming is not None
        self._coming.end()
        if not self._waiting:
            self._read(on=True)  # the connection's end is to be seen; a further request pauses it again
        if self._running is None:  # a body that came after its answer
            self._clock.start("idle", self._host.keep_alive_s)

    def _time_is_over(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()

    # What the server calls

    def shutdown(self) -> None:
        """Take no further request, and close when those that came have their answers."""
        if self._running is None:
            self._transport.close()

    # Answers

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._host.answer(request)
            try:
                while self._writable is not None:
                    await self._writable
                if not request.gone:
                    self._respond(request, response)
            finally:
                if response.after is not None:
                    response.after()
        except Exception:  # a mistake of ours: whoever waits is not to wait for ever
            log.exception("a request cannot be answered", extra={"path": request.path})
            self._transport.close()

    def _respond(self, request: Request, response: Response) -> None:
        closes = not request.keeps_alive or (self._host.ending and not self._waiting)
        self._write(head_of(response, closes=closes), b"" if request.method == "HEAD" else response.body)
        request.answered = True
        self._running = None
        if closes:
            self._transport.close()
        if self._transport.is_closing():
            return
        if self._waiting:
            self._run_next()
        elif self._refusal is not None:
            self._tell(self._refusal)
        elif self._half_closed:
            self._transport.close()
        else:
            self._read(on=True)
            self._clock.start("idle", self._host.keep_alive_s)

    def _run_next(self) -> None:
        request = self._running = self._waiting.popleft()
        if not self._waiting:  # else each answer would let in any number of further requests
            self._read(on=True)
        if self._half_closed:
            self._begin_answer()
        self._host.start(self._answer(request), at_once=False)  # any number may have come, and none waits for long

    def _write(self, head: bytes, body: bytes) -> None:
        begun = 0
        if self._beginning is not None:
            begun, self._beginning = self._beginning.end(), None
        self._transport.write(head[begun:] + body)

    def _begin_answer(self) -> None:
        """Find out whether the caller that sends no more still listens."""
        if self._running is not None and self._beginning is None:
            self._beginning = Beginning(self._transport)
            self._beginning.begin()

    def _refuse(self, status: int, message: str) -> None:
        """Tell what is wrong and close, after the answers to the requests before it."""
        self._refusal = json_response({"error": message}, status)
        self._clock.stop()
        last = self._coming
        if self._running is not None and last is not None and not last.ended:  # it is that one that cannot be read
            last.leave()
            if not self._waiting:
                self._tell(self._refusal)
            else:
                self._waiting.pop()
        elif self._running is None:
            self._tell(self._refusal)

    def _tell(self, refusal: Response) -> None:
        if not self._transport.is_closing():
            self._write(head_of(refusal, closes=True), refusal.body)
            self._transport.close()

    # Reading

    def _wanted(self, request: Request) -> None:
        """More of a request's body is waited for."""
        if request.header("expect").lower() == "100-continue" and not self._went_on:
            self._went_on = True
            self._transport.write(CONTINUE)
        self._read(on=True)

    def _read(self, *, on: bool) -> None:
        if on is not self._reading:
            self._reading = on
            (self._transport.resume_reading if on else self._transport.pause_reading)()
