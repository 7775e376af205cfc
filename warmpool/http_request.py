"""What the front reads of an HTTP request besides its path: numbers in headers, and the body, within size and time."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request

from warmpool import wire
from warmpool.errors import BadInput, DeadlineExceeded, TooLarge
from warmpool.settings import DEADLINE_MS_MAX


class Call:
    """One inference: its request, the time that its caller still has, and its trace.

    `start_ns`: since the epoch, when the body had arrived; until then, when the head had.
    """

    def __init__(self, request: Request, trace_id: str) -> None:
        self.request = request
        self.trace_id = trace_id
        self.start_ns = time.time_ns()
        self._started_s = asyncio.get_running_loop().time()

    async def body(self, bytes_max: int, default_ms: int) -> tuple[bytes, float]:
        """The body, and the seconds that are left for its answer. Raises as `read_body`; BadInput for a bad timeout."""
        wait_s = timeout_s(self.request, default_ms)
        body = await read_body(self.request, bytes_max, wait_s)
        self.start_ns = time.time_ns()
        return body, max(0.0, self._started_s + wait_s - asyncio.get_running_loop().time())


async def read_body(request: Request, bytes_max: int, wait_s_max: float) -> bytes:
    """The body, if it is all there in time.

    Raises:
        BadInput: it is encoded.
        TooLarge: it has, or says it has, more than `bytes_max`; nothing more of it is kept.
        DeadlineExceeded: its end did not come within `wait_s_max`.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise BadInput.about("content-encoding", encoding, "identity")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise TooLarge(f"body: {declared} bytes, allowed: {bytes_max}")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(wait_s_max):
            async for chunk in request.stream():
                size += len(chunk)
                if size > bytes_max:
                    raise TooLarge(f"body: more than {bytes_max} bytes, allowed: {bytes_max}")
                chunks.append(chunk)
    except TimeoutError:
        raise DeadlineExceeded(f"body: {size} bytes came within {wait_s_max:g} s, and not its end") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def timeout_s(request: Request, default_ms: int) -> float:
    """How long the caller waits. Raises BadInput."""
    value = request.headers.get(wire.TIMEOUT_HEADER)
    return (default_ms if value is None else whole_number(wire.TIMEOUT_HEADER, value, DEADLINE_MS_MAX)) / 1000


def whole_number(field: str, text: str, largest: int) -> int:
    """A number from 1 to `largest` that a caller wrote; int() itself refuses, its own way, what has many digits."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(largest)) and 1 <= int(text) <= largest):
        raise BadInput.about(field, text, f"1 to {largest}")
    return int(text)
