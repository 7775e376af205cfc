"""A client of a few microseconds: one keep-alive connection, requests made beforehand, responses read whole.

What is measured is the server, so as little as possible happens here between the two clock readings.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from examples.loopback import HOST

EXCHANGE_S_MAX = 60.0
BACKOFF_S = 0.002
STATUS_BACKOFF_S = 0.02  # asking for the status takes a core's time from the lane whose loading it watches
_READ_BYTES = 1 << 16
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEADER_LENGTH = re.compile(rb"\r\ninference-header-content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Response:
    """A response; `json_bytes` is where the JSON of a binary V2 body ends, None where there is no binary."""

    status: int
    head: bytes
    body: bytes

    @property
    def json_bytes(self) -> int | None:
        found = _HEADER_LENGTH.search(self.head)
        return int(found[1]) if found else None


class Connection:
    """A connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=EXCHANGE_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def exchange(self, request: bytes) -> Response:
        """Send a request, read its response. Raises OSError if the server goes away."""
        self._socket.sendall(request)
        data = self._read()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._read()
        head = data[: end + 2]
        length = _CONTENT_LENGTH.search(head)
        if length is None:
            raise ConnectionError(f"a response without content-length: {head[:200]!r}")
        missing = int(length[1]) - (len(data) - end - 4)
        parts = [data[end + 4 :]]
        while missing > 0:
            parts.append(self._read())
            missing -= len(parts[-1])
        return Response(int(head[9:12]), head, b"".join(parts))

    def _read(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data


def http_request(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ask_once(port: int, request: bytes) -> Response:
    """One request on a connection of its own."""
    with Connection(port) as connection:
        return connection.exchange(request)


def poll(
    port: int, request: bytes, wait_s_max: float, wanted: Callable[[Response], bool], backoff_s: float = BACKOFF_S
) -> tuple[Response, float]:
    """Ask on a new connection until the answer is wanted; that answer, and when it had come (`time.perf_counter`).

    Raises:
        TimeoutError: It did not come in time.
    """
    deadline_s = time.perf_counter() + wait_s_max
    last = "nothing"
    while time.perf_counter() < deadline_s:
        try:
            response = ask_once(port, request)
            now_s = time.perf_counter()
            if wanted(response):
                return response, now_s
            last = f"{response.status} {response.body[:200]!r}"
        except OSError as error:
            last = str(error)
        time.sleep(backoff_s)
    raise TimeoutError(f"port {port} gave no wanted answer within {wait_s_max:.0f} s; the last one was {last}")
