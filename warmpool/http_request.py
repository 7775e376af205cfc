"""What the front reads of an HTTP request besides its path: its urgency, and the body, within size and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from warmpool.byte_budget import Held
from warmpool.caller import Caller
from warmpool.dataplane import DataPlane
from warmpool.errors import BadInput, DeadlineExceeded, TooLarge
from warmpool.http_messages import Request
from warmpool.urgency import Urgency
from warmpool.version_routing import STICKY_HEADER, VERSION_HEADER, Wish

BODY_S_MAX = 60.0  # bytes that are announced are held from the first: a caller has no more time to send them
_PLAIN = (("content-encoding", "identity"), ("transfer-encoding", "chunked"))


class Call:
    """One inference: its request and its caller, the time that this one still has, the bytes held, and the trace.

    `start_ns`: since the epoch, when the body had arrived; until then, when the head had.
    """

    def __init__(self, request: Request, trace_id: str, held: Held, default_ms: int) -> None:
        self.request = request
        self.trace_id = trace_id
        self.start_ns = time.time_ns()
        self.caller: Caller = request.caller
        self._held = held
        self._default_s = default_ms / 1000
        self._urgency = Urgency()
        self._started_s = asyncio.get_running_loop().time()

    async def known(self, dataplane: DataPlane) -> None:
        """Wait within the caller's time until it is known what is served. Raises BadInput as `body`."""
        if not dataplane.read.is_set():
            with self.caller:
                await dataplane.known(Urgency.of_headers(self.request.headers).timeout_s or self._default_s)

    async def body(self, bytes_max: int) -> bytes:
        """The body, read within the caller's time. Raises as `read_body`, and BadInput for headers that say no time."""
        self._urgency = Urgency.of_headers(self.request.headers)
        body = await read_body(self.request, bytes_max, self._urgency.timeout_s or self._default_s, self._held)
        self.start_ns = time.time_ns()
        return body

    def urgency(self, parameters: Mapping[str, object]) -> tuple[float, int]:
        """The seconds that are left for the answer, and its priority, by headers and parameters. Raises BadInput."""
        urgency = self._urgency.with_parameters(parameters)
        end_s = self._started_s + (urgency.timeout_s or self._default_s)
        return max(0.0, end_s - asyncio.get_running_loop().time()), urgency.priority


def wish_of(request: Request) -> Wish:
    """What a caller says of versions in path and headers. Raises BadInput."""
    version = request.parameters.get("version", "")
    return Wish.of(version, request.header(VERSION_HEADER), request.header(STICKY_HEADER))


async def read_body(request: Request, bytes_max: int, wait_s_max: float, held: Held) -> bytes:
    """The body, if it is all there in time.

    Raises:
        BadInput: it is encoded.
        TooLarge: it has, or says it has, more than `bytes_max`; nothing more of it is kept.
        Overloaded: as `Held.raise_to`; before it is read, if it says how long it is.
        DeadlineExceeded: its end did not come within `wait_s_max`, or `BODY_S_MAX`.
    """
    for field, plain in _PLAIN:
        if (encoding := request.header(field, plain)).strip().lower() != plain:
            raise BadInput.about(field, encoding, plain)
    declared = request.header("content-length", "0")
    if declared.isdecimal():
        if int(declared) > bytes_max:
            raise TooLarge(f"body: {declared} bytes, allowed: {bytes_max}")
        held.raise_to(int(declared))
    body = _Body(request, bytes_max, held)
    body.take()
    if not request.ended:  # it almost always is: it came in one piece with its head
        await _rest(request, body, min(wait_s_max, BODY_S_MAX))
    return body.whole


async def _rest(request: Request, body: _Body, wait_s_max: float) -> None:
    try:
        async with asyncio.timeout(wait_s_max):
            while not request.ended:
                await request.more()
                body.take()
    except TimeoutError:
        raise DeadlineExceeded(f"body: {body.size} bytes came within {wait_s_max:g} s, and not its end") from None


class _Body:
    """What was read of a body."""

    def __init__(self, request: Request, bytes_max: int, held: Held) -> None:
        self._request = request
        self._bytes_max = bytes_max
        self._held = held
        self._pieces: list[bytes] = []
        self.size = 0

    @property
    def whole(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def take(self) -> None:
        """Take what has come. Raises as `read_body`."""
        piece = self._request.take()
        self.size += len(piece)
        if self.size > self._bytes_max:
            raise TooLarge(f"body: more than {self._bytes_max} bytes, allowed: {self._bytes_max}")
        self._held.raise_to(self.size)
        self._pieces.append(piece)
