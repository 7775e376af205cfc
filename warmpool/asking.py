"""How commands ask a running instance, one GET and one-line errors, and how they print what it says."""

from __future__ import annotations

import argparse
import re
import sys
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from typing import Any
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

from warmpool.errors import WarmpoolError

URL_DEFAULT = "http://127.0.0.1:8000"
WAIT_S_MAX = 10.0
PIPE_COLUMNS = 130  # a pipe has no width; this is what a log shows well
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class InstanceSilent(WarmpoolError):
    """No instance answers at the URL, or what answers is none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every asking command has."""
    parser.add_argument("--url", default=URL_DEFAULT, help=f"the instance's HTTP address ({URL_DEFAULT})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def ask[T](url: str, path: str, kind: type[T]) -> tuple[Any, T]:
    """The JSON document at a path of an instance, as it came and as a `kind`. Raises InstanceSilent."""
    if not re.fullmatch(r"https?://\S+", url):
        raise InstanceSilent(f"--url is {url!r}, allowed: an http:// or https:// address")
    body = _fetched(url, path)
    try:
        document = msgspec.json.decode(body)
        return document, msgspec.convert(document, kind)
    except msgspec.DecodeError as error:
        raise InstanceSilent(f"what answers at {url} is no warmpool instance, or another version ({error})") from None


def console() -> Console:
    """Where commands print for people; it ends the process quietly when its reader has left."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def print_json(document: Any) -> None:
    """Print a document for programs."""
    console().out(msgspec.json.format(msgspec.json.encode(document)).decode())


def _fetched(url: str, path: str) -> bytes:
    target = f"{url.rstrip('/')}{path}"
    try:
        # A proxy that the environment names cannot reach this machine's own addresses.
        proxies = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in LOOPBACK else []
        with urllib.request.build_opener(*proxies).open(target, timeout=WAIT_S_MAX) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()  # it is the response too
        raise InstanceSilent(f"{target} answers {error.code}: it is no warmpool instance, or another version") from None
    except (OSError, ValueError, InvalidURL) as error:
        reason = getattr(error, "reason", error)
    except HTTPException:
        reason = "what does is not HTTP"
    raise InstanceSilent(f"no instance answers at {url} ({reason}); start one with `warmpool serve`")
