"""The head of an HTTP/1.1 response."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from warmpool.http_messages import Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


def head_of(response: Response, *, closes: bool) -> bytes:
    """Status, headers and the empty line. `closes`: the connection ends with this response."""
    status = response.status
    lines = [f"HTTP/1.1 {status} {_PHRASES[status]}\r\ndate: {_date(int(time.time()))}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines.append(f"content-length: {len(response.body)}\r\n{'connection: close\r\n' if closes else ''}\r\n")
    return "\r\n".join(lines).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
