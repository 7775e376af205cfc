"""Our own processes on this machine: their ports, and HTTP to them, never by way of a proxy, whatever is set."""

from __future__ import annotations

import argparse
import urllib.request
from http.client import HTTPResponse

HOST = "127.0.0.1"

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_or_post(
    url: str, body: bytes | None = None, content_type: str = "application/json", timeout_s: float = 30.0
) -> HTTPResponse:
    """Send a request, a POST where there is a body; the caller closes the response.

    Raises:
        urllib.error.HTTPError: Any status but 2xx.
        OSError: No answer.
    """
    headers = {"content-type": content_type} if body is not None else {}
    response: HTTPResponse = _opener.open(urllib.request.Request(url, body, headers), timeout=timeout_s)  # noqa: S310
    return response


def port(text: str) -> int:
    """A port's number, for argparse."""
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a port from 1 to 65535")
    return number
