"""What the front reads of an HTTP request besides its path: its urgency, and the body, within size and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from starlette.requests import Request

from warmpool.byte_budget import Held
from warmpool.caller import Caller
from warmpool.dataplane import DataPlane
from warmpool.errors import BadInput, DeadlineExceeded, TooLarge
from warmpool.urgency import Urgency
from warmpool.version_routing import STICKY_HEADER, VERSION_HEADER, Wish

BODY_S_MAX = 60.0  # bytes that are announced are held from the first: a caller has no more time to send them


class Call:
    """One inference: its request and its caller, the time that this one still has, the bytes held, and the trace.

    `start_ns`: since the epoch, when the body had arrived; until then, when the head had.
    """

    def __init__(self, request: Request, trace_id: str, held: Held, default_ms: int) -> None:
        self.request = request
        self.trace_id = trace_id
        self.start_ns = time.time_ns()
        self.caller: Caller = request.scope.get("state", {}).get("caller") or Caller()
        self._held = held
        self._default_s = default_ms / 1000
        self._urgency = Urgency()
        self._started_s = asyncio.get_running_loop().time()

    async def known(self, dataplane: DataPlane) -> None:
        """Wait within the caller's time until it is known what is served. Raises BadInput as `body`."""
        if not dataplane.read.is_set():
            with self.caller:
                await dataplane.known(Urgency.of_headers(self.request.headers.items()).timeout_s or self._default_s)

    async def body(self, bytes_max: int) -> bytes:
        """The body, read within the caller's time. Raises as `read_body`, and BadInput for headers that say no time."""
        self._urgency = Urgency.of_headers(self.request.headers.items())
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
    headers = request.headers
    version = request.path_params.get("version", "")
    return Wish.of(version, headers.get(VERSION_HEADER, ""), headers.get(STICKY_HEADER, ""))


async def read_body(request: Request, bytes_max: int, wait_s_max: float, held: Held) -> bytes:
    """The body, if it is all there in time.

    Raises:
        BadInput: it is encoded.
        TooLarge: it has, or says it has, more than `bytes_max`; nothing more of it is kept.
        Overloaded: as `Held.raise_to`; before it is read, if it says how long it is.
        DeadlineExceeded: its end did not come within `wait_s_max`, or `BODY_S_MAX`.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise BadInput.about("content-encoding", encoding, "identity")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal():
        if int(declared) > bytes_max:
            raise TooLarge(f"body: {declared} bytes, allowed: {bytes_max}")
        held.raise_to(int(declared))
    chunks: list[bytes] = []
    size = 0
    wait_s_max = min(wait_s_max, BODY_S_MAX)
    try:
        async with asyncio.timeout(wait_s_max):
            async for chunk in request.stream():
                size += len(chunk)
                if size > bytes_max:
                    raise TooLarge(f"body: more than {bytes_max} bytes, allowed: {bytes_max}")
                held.raise_to(size)
                chunks.append(chunk)
    except TimeoutError:
        raise DeadlineExceeded(f"body: {size} bytes came within {wait_s_max:g} s, and not its end") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
