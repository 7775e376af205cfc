"""How commands ask a running instance: one GET, its JSON, and one-line errors."""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request
from typing import Any

import msgspec

from warmpool.errors import WarmpoolError

URL_DEFAULT = "http://127.0.0.1:8000"
WAIT_S_MAX = 10.0


class InstanceSilent(WarmpoolError):
    """No instance answers at the URL, or what answers is none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every asking command has."""
    parser.add_argument("--url", default=URL_DEFAULT, help=f"the instance's HTTP address ({URL_DEFAULT})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def ask(url: str, path: str) -> Any:
    """The JSON document at a path of an instance. Raises InstanceSilent."""
    if not url.startswith(("http://", "https://")):
        raise InstanceSilent(f"--url is {url!r}, allowed: an http:// or https:// address")
    target = f"{url.rstrip('/')}{path}"
    try:
        with urllib.request.urlopen(target, timeout=WAIT_S_MAX) as response:  # noqa: S310  # checked above
            return msgspec.json.decode(response.read())
    except urllib.error.HTTPError as error:
        raise InstanceSilent(f"{target} answers {error.code}: it is no warmpool instance, or an older one") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InstanceSilent(f"no instance answers at {url} ({reason}); start one with `warmpool serve`") from None
