"""Kept-alive HTTP/1.1 connections to one instance: asyncio's streams for the bytes, httptools for the protocol.

HTTP clients that bring an event-loop layer of their own cost more than all the rest of a function. Measured with
httpcore 1.0.9: 30 ms of each cold start (a third at import, the rest at the first request, when anyio loads its
backend) and 0.3 ms of each request. h11, in Python, takes 7 ms to import; httptools takes 1 ms, and
functions-framework's server uses it too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import httptools
import msgspec

CONNECTIONS_MAX = 64
CONNECT_S_MAX = 2.0
# Below the five seconds after which common servers close an idle connection, so that few are closed as they are taken.
IDLE_S_MAX = 4.0
READ_BYTES = 1 << 18
HEAD_BYTES_MAX = 1 << 16

Headers = Sequence[tuple[str, str]]


class Unreachable(Exception):
    """No connection could be made. Nothing was sent."""


class Dropped(Exception):
    """The connection ended before the whole answer came, with or without a part of it."""


class Malformed(Exception):
    """The answer is not HTTP, or more than one."""


class Oversized(Exception):
    """The answer has more bytes than are allowed."""


class Answer(msgspec.Struct, frozen=True):
    """What came back. Header names are in lower case."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class _Collector:
    """What httptools reports of one answer, by calling these methods. `surplus`: a second one came after it."""

    __slots__ = ("body_bytes", "chunks", "complete", "headers", "surplus")

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.body_bytes = 0
        self.complete = False
        self.surplus = False

    def on_message_begin(self) -> None:
        self.surplus = self.surplus or self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        self.complete = True


class _Connection:
    """One connection. `reusable` says whether the last answer left it ready for another request."""

    __slots__ = ("_reader", "_writer", "idle_since_s", "reusable")

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since_s = 0.0
        self.reusable = False

    def send(self, head: bytes, body: bytes) -> None:
        """Hand a request to the transport, without waiting: a server that refuses early does not read all of it."""
        self.reusable = False
        self._writer.writelines([head, body])

    async def receive(self, body_bytes_max: int) -> Answer:
        """Read the answer.

        Raises:
            Dropped, Malformed, Oversized: There is none, or only a part, or no sense in it, or too much of it.
        """
        collector = _Collector()
        parser = httptools.HttpResponseParser(collector)
        size = 0
        while not collector.complete:
            try:
                data = await self._reader.read(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise Dropped
            size += len(data)
            try:
                parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                raise Malformed from error
            if collector.body_bytes > body_bytes_max or size > body_bytes_max + HEAD_BYTES_MAX:
                raise Oversized(f"got over {body_bytes_max} bytes; allowed: {body_bytes_max}")
        # Nobody asked for a second answer, so the first may not be the one that was asked for.
        if collector.surplus:
            raise Malformed
        unsent = self._writer.transport.get_write_buffer_size()
        lasting = parser.get_http_version() == "1.1" and collector.headers.get(b"connection", b"").lower() != b"close"
        self.reusable = lasting and not unsent
        chunks = collector.chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return Answer(parser.get_status_code(), collector.headers, body)

    def is_open(self) -> bool:
        """Tell whether the other side still holds the connection, as far as this side has heard."""
        return not (self._reader.at_eof() or self._writer.transport.is_closing())

    def abort(self) -> None:
        self._writer.transport.abort()


class Connections:
    """All connections to one instance. Belongs to one event loop.

    Args:
        url: The instance's base URL.
        answer_bytes_max: The largest body of an answer.
    """

    def __init__(self, url: str, answer_bytes_max: int) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._authority = parts.netloc
        self._prefix = parts.path
        self._answer_bytes_max = answer_bytes_max
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: deque[_Connection] = deque()

    async def post(self, path: str, headers: Headers, body: bytes, connect_s_max: float = CONNECT_S_MAX) -> Answer:
        """Send a POST request and read its answer. A cancelled call closes its connection.

        Raises:
            Unreachable, Dropped, Malformed, Oversized: There is no complete answer.
        """
        return await self._send(self._head("POST", path, headers, len(body)), body, connect_s_max)

    async def get(self, path: str, headers: Headers, connect_s_max: float = CONNECT_S_MAX) -> Answer:
        """As `post`, with a GET request."""
        return await self._send(self._head("GET", path, headers, 0), b"", connect_s_max)

    async def _send(self, head: bytes, body: bytes, connect_s_max: float) -> Answer:
        async with self._slots:
            connection = self._take_idle() or await self._connect(connect_s_max)
            try:
                connection.send(head, body)
                answer = await connection.receive(self._answer_bytes_max)
            finally:
                self._put_back(connection)
        return answer

    def close(self) -> None:
        """Close the idle connections. Idempotent."""
        while self._idle:
            self._idle.pop().abort()

    def _head(self, method: str, path: str, headers: Headers, body_bytes: int) -> bytes:
        fields = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"host: {self._authority}",
            f"content-length: {body_bytes}",
        ]
        fields += [f"{name}: {value}" for name, value in headers]
        if not all(map(str.isprintable, fields)):
            raise ValueError("a path or header has a control character, which would let it add headers of its own")
        return "\r\n".join([*fields, "", ""]).encode("latin-1")

    def _take_idle(self) -> _Connection | None:
        """Return the connection that was used last, so that those beyond the need grow old and are closed."""
        self._close_before(asyncio.get_running_loop().time() - IDLE_S_MAX)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.abort()
        return None

    def _put_back(self, connection: _Connection) -> None:
        now_s = asyncio.get_running_loop().time()
        self._close_before(now_s - IDLE_S_MAX)
        if connection.reusable:
            connection.idle_since_s = now_s
            self._idle.append(connection)
        else:
            connection.abort()

    def _close_before(self, oldest_s: float) -> None:
        while self._idle and self._idle[0].idle_since_s < oldest_s:
            self._idle.popleft().abort()

    async def _connect(self, connect_s_max: float) -> _Connection:
        try:
            async with asyncio.timeout(min(connect_s_max, CONNECT_S_MAX)):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, limit=READ_BYTES, ssl=self._tls or None
                )
        except OSError as error:
            raise Unreachable from error
        return _Connection(reader, writer)
