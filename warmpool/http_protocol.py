"""uvicorn's HTTP/1.1 connection, with bounds on what comes, and answers where it gives none.

Anyone may connect. So heads have a size and a time, an upgrade that nobody takes up is a request like any other, a
caller that has closed its sending half may still listen, and what is no HTTP is told so when the requests before it
have their answers.

A caller that leaves is noticed while its request waits, and the request's `Caller` is told. A connection that is reset
says so. One that was closed only says that nothing more will be sent, as one that still listens does; but whoever has
closed it refuses what is sent to it. So the answer is begun: each of its first bytes, which are the same for all
answers, goes out alone, and who still listens finds them in their place. Not noticed is who leaves more requests behind
on the same connection than the one that is answered: what comes after that one is not read yet.
"""

from __future__ import annotations

import asyncio

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from warmpool.caller import Caller

HEAD_BYTES_MAX = 1 << 16
HEAD_S_MAX = 30.0
BEGINNING = b"HTTP/1.1 "
BEGIN_S = (0.001, 0.01, 0.05, 0.2, 1.0, 5.0, 15.0, 60.0)  # from each byte of the beginning to the next one


class HeadTooLarge(Exception):
    """The parser is to stop: the head, or what else is none of the body, has become too long."""


class BegunTransport:
    """A connection on which the beginning of an answer may be out: what is written goes on behind that."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begun = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Send a byte of the beginning, and later the next one."""
        if self._transport.is_closing():
            return
        self._transport.write(BEGINNING[self._begun : self._begun + 1])
        self._begun += 1
        if self._begun < len(BEGINNING):
            delay_s = BEGIN_S[self._begun - 1]
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.begin)

    def end(self) -> None:
        """Begin no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def write(self, data: bytes) -> None:
        self.end()
        begun, self._begun = self._begun, 0
        assert data.startswith(BEGINNING[:begun]), data[:20]
        self._transport.write(data[begun:])

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.end()
        self._transport.close()


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    At any moment one of three clocks runs for it: while a request is answered, that request's own deadline; between
    requests uvicorn's, for idle connections; and from the first byte of a request until its head is there, or from the
    first byte of a body that came after its answer until its end, HEAD_S_MAX in all.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # of the fields that came whole
    _loose_bytes = 0  # of pieces in which no field and no part of a body ended
    _events = 0
    _half_closed = False
    _running: RequestResponseCycle | None = None  # the request that is answered; `cycle` is the last one that came
    _refusal: tuple[int, str] | None = None  # what is told when those before it have their answers

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._unset_head_timer()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.scope["state"]["caller"].leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except (HeadTooLarge, httptools.HttpParserError) as error:
            if isinstance(error, HeadTooLarge) or isinstance(error.__context__, HeadTooLarge):
                self._refuse(431, f"head: more than {HEAD_BYTES_MAX} bytes, allowed: {HEAD_BYTES_MAX}")
            else:
                self._refuse(400, "what came is not HTTP/1.1")
        else:
            if not self._answering and self.timeout_keep_alive_task is None and self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_S_MAX, self.timeout_keep_alive_handler)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: the caller that sent whole requests may only have closed its half."""
        self._half_closed = self._refusal is not None or (self._answering and not self.cycle.more_body)
        if self._half_closed:
            self._begin_answer()
        return self._half_closed

    # What the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["caller"] = Caller()
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._events += 1
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head_bytes + len(self.url) > HEAD_BYTES_MAX:
            raise HeadTooLarge
        if self.parser.should_upgrade():
            return  # it comes again, without the upgrade
        self._unset_head_timer()
        self._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._events += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # its end is to be seen; a further request pauses it again
        if not self._answering:  # a body that came after its answer
            self._unset_head_timer()
            self._wait_idle()

    # What a request calls when it has its answer

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
        elif self._refusal is not None:
            self._tell_refusal()
        elif self._half_closed:
            self.transport.close()
        else:
            super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self._half_closed:
            self._begin_answer()
        super()._start_asgi_task(cycle, app)

    def _begin_answer(self) -> None:
        """Find out whether the caller that sends no more still listens."""
        running = self._running
        if running is not None and not running.response_started:
            begun = BegunTransport(self.transport)
            running.transport = begun  # type: ignore[assignment]
            begun.begin()

    @property
    def _answering(self) -> bool:
        # There is no cycle before the first request, whatever its declared type says.
        return bool(self.pipeline) or bool(self.cycle and not self.cycle.response_complete)  # type: ignore[truthy-bool]

    def _feed(self, data: bytes) -> None:
        """Parse. What asks for an upgrade is parsed again without it, as HTTP lets a server do that takes up none."""
        rest, before = data, self._events
        while rest:
            try:
                self.parser.feed_data(rest)
                rest = b""
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("CONNECT is a proxy's") from None
                rest = self._head_without_upgrade() + rest[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._loose_bytes = self._loose_bytes + len(data) if self._events == before else 0
        if self._loose_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge

    def _head_without_upgrade(self) -> bytes:
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = (b"%b: %b" % field for field in self.headers if field[0] != b"upgrade")
        return b"\r\n".join((line, *fields, b"", b""))

    def _refuse(self, status: int, message: str) -> None:
        """Tell what is wrong and close, after the answers to the requests before it."""
        self._refusal = status, message
        self._unset_head_timer()
        waiting = self._answering
        if waiting and self.cycle.more_body:  # it is the last request itself that cannot be read
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            waiting = bool(self.pipeline)
            if waiting:
                self.pipeline.popleft()
        if not waiting:
            self._tell_refusal()

    def _tell_refusal(self) -> None:
        assert self._refusal is not None
        status, message = self._refusal
        if not self.transport.is_closing():
            body = msgspec.json.encode({"error": message})
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()

    def _wait_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _unset_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
