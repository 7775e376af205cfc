"""A proxy before a server of GCS's protocol that does what networks do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import Self

from benchmarks.gameday.gcs_server import GcsServer

REQUEST_S_MAX = 60.0
LATE_S = 0.3
RESET = struct.pack("ii", 1, 0)  # a linger of no seconds: closing sends a reset


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    client_port: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Call:
    """One request on its way, for a fault to do with as it likes."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._body = b""
        self._answer: Answer | None = None

    @property
    def path(self) -> str:
        """Path and query."""
        return self._handler.path

    @property
    def headers(self) -> Message:
        """What the client sent, and what is passed on."""
        return self._handler.headers

    def add_to_query(self, addition: str) -> None:
        """Ask for something else than the client did."""
        self._handler.path += f"&{addition}"

    def body(self, bytes_max: int | None = None) -> bytes:
        """What the client sends, or the start of it."""
        length = int(self.headers.get("content-length", 0))
        missing = (length if bytes_max is None else min(length, bytes_max)) - len(self._body)
        self._body += self._handler.rfile.read(max(missing, 0))
        return self._body

    def ask(self) -> Answer:
        """Pass it on; what was answered the first time is the answer."""
        if self._answer is None:
            self._answer = self._asked()
        return self._answer

    def _asked(self) -> Answer:
        handler, server = self._handler, self._handler.server
        connection = http.client.HTTPConnection("127.0.0.1", server.upstream.port, timeout=REQUEST_S_MAX)
        with contextlib.closing(connection):
            connection.request(handler.command, handler.path, self.body(), dict(handler.headers.items()))
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())

    def wait_until_gone(self) -> None:
        """Until the client gives up."""
        self._handler.close_connection = True
        self._handler.rfile.read(1)

    def begin(self, answer: Answer) -> None:
        """Send status and headers, with the whole length."""
        self._handler.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                own = value.replace(self._handler.server.upstream.url, self._handler.server.url)
                self._handler.send_header(name, own)
        self._handler.send_header("Content-Length", str(len(answer.body)))
        self._handler.end_headers()

    def send(self, data: bytes) -> None:
        self._handler.wfile.write(data)

    def close(self, *, reset: bool) -> None:
        """End the connection, orderly or not."""
        self._handler.close_connection = True
        if reset:
            self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._handler.connection.close()


Fault = Callable[[Call], None]


def passed(call: Call) -> None:
    """No fault."""
    answer = call.ask()
    call.begin(answer)
    call.send(answer.body)


def hanging(call: Call) -> None:
    """No answer at all."""
    call.body()
    call.wait_until_gone()


def done_but(status: int) -> Fault:
    """The server does what it is asked for, and what arrives is an error."""

    def fault(call: Call) -> None:
        call.ask()
        answers(status)(call)

    return fault


def answers(status: int, message: str = "scripted", *, body: bytes | None = None) -> Fault:
    """An error instead of the server's answer; it is not asked."""
    text = body if body is not None else f'{{"error": {{"code": {status}, "message": "{message}"}}}}'.encode()

    def fault(call: Call) -> None:
        call.body()
        call.begin(Answer(status, [("Content-Type", "application/json")], text))
        call.send(text)

    return fault


def lost(call: Call) -> None:
    """The server does what it is asked for, and its answer does not arrive."""
    call.ask()
    call.close(reset=True)


def broken_after(size_bytes: int, *, reset: bool) -> Fault:
    """Only the start of the body arrives; the connection is reset, or ends in an orderly way."""

    def fault(call: Call) -> None:
        answer = call.ask()
        call.begin(answer)
        call.send(answer.body[:size_bytes])
        call.close(reset=reset)

    return fault


def changed(call: Call) -> None:
    """One bit arrives as another."""
    answer = call.ask()
    middle = len(answer.body) // 2
    call.begin(answer)
    call.send(answer.body[:middle] + bytes([answer.body[middle] ^ 1]) + answer.body[middle + 1 :])


def late(call: Call) -> None:
    """As it was answered, a moment later."""
    time.sleep(LATE_S)
    passed(call)


def trickling(call: Call) -> None:
    """A byte every hundredth of a second, for as long as the client stays."""
    answer = call.ask()
    call.begin(answer)
    for byte in answer.body:
        call.send(bytes([byte]))
        time.sleep(0.01)


class Weather(deque[Fault]):
    """A script that does not run out: one of its faults each time, drawn; none while it is fine.

    Args:
        seed: Of what is drawn.

    Attributes:
        faults: May be changed at any time.
    """

    def __init__(self, seed: int = 5) -> None:
        super().__init__()
        self.faults: list[Fault] = [passed]
        self._random = random.Random(seed)

    def popleft(self) -> Fault:
        return self._random.choice(self.faults)


class FaultProxy(http.server.ThreadingHTTPServer):
    """Between a client and the server, in a thread: every request meets the next fault of the script, then none.

    Attributes:
        script: Faults to come.
        seen: Every request so far.
    """

    daemon_threads = True

    def __init__(self, upstream: GcsServer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = upstream
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.script: deque[Fault] = deque()
        self.seen: list[Request] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *about: object) -> None:
        """Clients that go away are the point."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    server: FaultProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append(Request(self.command, self.path, headers, self.client_address[1]))
        try:
            fault = self.server.script.popleft()
        except IndexError:
            fault = passed
        fault(Call(self))

    do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

    def log_message(self, *about: object) -> None:
        """Nothing."""
