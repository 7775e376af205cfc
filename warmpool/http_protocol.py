"""uvicorn's HTTP/1.1 connection, with bounds on what comes, and answers where it gives none.

Anyone may connect. So heads have a size and a time, an upgrade that nobody takes up is a request like any other, a
caller that has closed its sending half still listens, and what is no HTTP is told so when the requests before it have
their answers.
"""

from __future__ import annotations

import asyncio

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEAD_BYTES_MAX = 1 << 16
HEAD_S_MAX = 30.0


class HeadTooLarge(Exception):
    """The parser is to stop: the head, or what else is none of the body, has become too long."""


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
    _refusal: tuple[int, str] | None = None  # what is told when those before it have their answers

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._unset_head_timer()
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
        return self._half_closed

    # What the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
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
