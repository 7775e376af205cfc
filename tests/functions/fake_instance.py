"""A real HTTP server that speaks the pool's protocol, with results to compute by hand: it doubles every number.

It answers as it is told to, once for each instruction, and doubles when none is left. It runs in a thread with a loop
of its own, so that functions in this process and in others can call it. It takes spans as an instance does, and keeps
them.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from warmpool import wire


@dataclass(frozen=True)
class Say:
    """Answer with this instead of a result."""

    status: int
    body: bytes = b'{"error": "as told"}'
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cut:
    """Send so much of an answer, and end the connection: as a process that is killed does."""

    sent: bytes
    reset: bool = False  # as where something was not read yet


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
DROP = Cut(b"")  # read the request, then close without an answer
CUTS = tuple(
    Cut(sent, reset)
    for sent in (_HEAD[:20], _HEAD, _HEAD + bytes(999_999), _CHUNKED + b"2\r\nab\r\n")
    for reset in (False, True)
)
HANG = "hang"  # never answer
REFUSE_UNREAD = "refuse"  # answer 413 and close, without reading the body


@dataclass(frozen=True)
class Received:
    """One request that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def inputs(self) -> dict[str, wire.Tensor]:
        return wire.decode_request(self.body, self.headers.get("inference-header-content-length")).inputs


@dataclass
class FakeInstance:
    """Use as a context manager. `script` holds what to do with the next requests; bytes are sent as they are."""

    script: deque[Say | Cut | str | bytes] = field(default_factory=deque)
    received: list[Received] = field(default_factory=list)
    port: int = 0
    connections: int = 0
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def to(self, path: str) -> list[Received]:
        return [received for received in list(self.received) if received.path == path]

    def __enter__(self) -> "FakeInstance":
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def hang_up(self) -> None:
        """Close every connection, and keep listening."""

        def close() -> None:
            for writer in self._writers:
                writer.close()

        self._loop.call_soon_threadsafe(close)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        self._started.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._answer(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if self.script and self.script[0] == REFUSE_UNREAD:
            writer.write(_said(Say(413, headers=("connection: close",))))
            await writer.drain()
            return False
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        received = Received(start.split()[1], headers, body)
        self.received.append(received)
        self.arrived.release()
        if received.path == "/v1/traces":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
            return True
        told = self.script.popleft() if self.script else None
        if told == HANG:
            await self._stop.wait()
            return False
        if isinstance(told, Cut):
            writer.write(told.sent)
            await writer.drain()
            if told.reset:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            return False
        if isinstance(told, bytes):
            writer.write(told)
        else:
            writer.write(_said(told) if isinstance(told, Say) else _doubled(received))
        return True


def _said(told: Say) -> bytes:
    lines = [f"HTTP/1.1 {told.status} As Told", f"content-length: {len(told.body)}", *told.headers]
    return "\r\n".join([*lines, "", ""]).encode() + told.body


def _doubled(received: Received) -> bytes:
    tensor = next(iter(received.inputs.values()))
    items = wire.Tensor("FP32", (tensor.nbytes // 4,), tensor.data).tolist()
    output = wire.Tensor.of("FP32", [2 * item for item in items], tensor.shape)
    name = received.path.split("/")[3].partition(":")[0]
    response = wire.InferResponse(
        model_name=name, model_version="7", outputs={"output": output}, parameters={"lane": "primary", "cold": False}
    )
    body, header_length = wire.encode_response(response, lambda _name: True)
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nInference-Header-Content-Length: {header_length}\r\n\r\n"
    return head.encode() + body
