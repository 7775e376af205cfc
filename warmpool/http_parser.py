"""HTTP/1.1 requests out of bytes, by httptools: heads have a size, and an upgrade that nobody takes up is ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote

import httptools

from warmpool.http_messages import Request

HEAD_BYTES_MAX = 1 << 16
FIELD_BYTES = (
    32  # what a field counts besides name and value, as in HTTP/2 (RFC 9113, 6.5.2): many short ones are large
)

NotHttp = httptools.HttpParserError


class HeadTooLarge(Exception):
    """The head, or what else is none of the body, has become too long."""


class Receiver(Protocol):
    """Who is told what comes."""

    def request_begun(self, request: Request) -> None:
        """A head is there."""

    def body_came(self, piece: bytes) -> None:
        """A piece of the body of the request that began last."""

    def request_ended(self) -> None:
        """That request is whole."""


class RequestParser:
    """The requests of one connection.

    Args:
        receiver: Is told of them.
        wanted: Is called when more of a request's body is waited for.
    """

    def __init__(self, receiver: Receiver, wanted: Callable[[Request], None]) -> None:
        self._receiver = receiver
        self._wanted = wanted
        self._parser = self._new_parser()
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._head_bytes = 0  # of the fields that came whole
        self._loose_bytes = 0  # of pieces in which no field and no part of a body ended
        self._events = 0

    def feed(self, data: bytes) -> None:
        """Parse what came. What asks for an upgrade is parsed again without it, as HTTP lets a server do.

        Raises:
            NotHttp: It is none.
            HeadTooLarge: A head, or what is around a body, is larger than HEAD_BYTES_MAX.
        """
        rest, before = data, self._events
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    rest = b""
                except httptools.HttpParserUpgrade as upgrade:
                    if self._parser.get_method() == b"CONNECT":
                        raise NotHttp("CONNECT is a proxy's") from None
                    rest = self._head_without_upgrade() + rest[upgrade.args[0] :]
                    self._parser = self._new_parser()
        except NotHttp as error:
            if isinstance(error.__context__, HeadTooLarge):  # it was raised in a callback
                raise HeadTooLarge from None
            raise
        self._loose_bytes = self._loose_bytes + len(data) if self._events == before else 0
        if self._loose_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge

    def close(self) -> None:
        """Let go of the parser, which refers to this."""
        self._parser = None

    # What httptools calls

    def on_message_begin(self) -> None:
        self._url, self._fields = b"", []
        self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._events += 1
        self._head_bytes += FIELD_BYTES + len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge
        if self._in_head:  # else it comes behind the body, and nobody looks at it
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._events += 1
        if self._head_bytes + len(self._url) > HEAD_BYTES_MAX:
            raise HeadTooLarge
        if self._parser.should_upgrade():
            return  # it comes again, without the upgrade
        self._in_head = False
        self._receiver.request_begun(self._request())

    def on_body(self, body: bytes) -> None:
        self._events += 1
        self._receiver.body_came(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._receiver.request_ended()

    def _request(self) -> Request:
        url = httptools.parse_url(self._url)
        path = (url.path or b"/").decode("ascii")
        return Request(
            self._parser.get_method().decode("ascii"),
            unquote(path) if "%" in path else path,
            (url.query or b"").decode("latin-1"),
            [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in self._fields],
            wanted=self._wanted,
            keeps_alive=self._parser.get_http_version() != "1.0" and self._parser.should_keep_alive(),
        )

    def _head_without_upgrade(self) -> bytes:
        line = b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        fields = (b"%b: %b" % field for field in self._fields if field[0].lower() != b"upgrade")
        return b"\r\n".join((line, *fields, b"", b""))

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # What comes behind a request that closes the connection is no error, it is merely not read.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser
