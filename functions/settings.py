"""What a function's operator may set, read once from the environment and passed down from there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from warmpool import wire

URLS_DEFAULT = "http://127.0.0.1:8000"
ENDPOINTS_MAX = 64
BYTES_MAX = 2**53
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_AUDIENCE = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the pool is, and the limits of one request.

    Attributes:
        urls: Base URLs of the instances, `WARMPOOL_URLS` (comma separated).
        audience: The URL that identity tokens are made for, `WARMPOOL_AUDIENCE`: of a pool that takes requests only
            from whom it knows, as on Cloud Run. Empty: requests bring none.
        metadata_host: Where they are to be had, `GCE_METADATA_HOST`, as Google's own clients have it.
        timeout_ms: Time of a request whose caller names none, `WARMPOOL_TIMEOUT_MS`.
        timeout_ms_max: The most that a caller may ask for, `WARMPOOL_TIMEOUT_MS_MAX`.
        priority: How urgent all that the function asks for is, `WARMPOOL_PRIORITY`: 1 (most urgent) to 7, 0 for the
            default. Its own callers have no say in it, since each would be more urgent than the others.
        request_bytes_max: Largest body that a function reads, `WARMPOOL_REQUEST_BYTES_MAX`.
        response_bytes_max: Largest answer of an instance that a function reads, `WARMPOOL_RESPONSE_BYTES_MAX`.
    """

    urls: tuple[str, ...] = (URLS_DEFAULT,)
    audience: str = ""
    metadata_host: str = "metadata.google.internal"
    timeout_ms: int = 10_000
    timeout_ms_max: int = 3_600_000
    priority: int = 0
    request_bytes_max: int = 32 << 20
    response_bytes_max: int = 64 << 20

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings.

        Raises:
            ValueError: A variable has a value that cannot be used; the message names it.
        """
        limits = {
            field: _whole_number(environment, f"WARMPOOL_{field.upper()}", default, least, largest)
            for field, default, least, largest in (
                ("timeout_ms", cls().timeout_ms, 1, wire.TIMEOUT_MS_MAX),
                ("timeout_ms_max", cls().timeout_ms_max, 1, wire.TIMEOUT_MS_MAX),
                ("priority", cls().priority, 0, wire.PRIORITY_LEVEL_MAX),
                ("request_bytes_max", cls().request_bytes_max, 1, BYTES_MAX),
                ("response_bytes_max", cls().response_bytes_max, 1, BYTES_MAX),
            )
        }
        return cls(
            urls=_urls(environment.get("WARMPOOL_URLS") or URLS_DEFAULT),
            audience=_matching(environment, "WARMPOOL_AUDIENCE", _AUDIENCE, "https://HOST"),
            metadata_host=_matching(environment, "GCE_METADATA_HOST", _HOST, "HOST or HOST:PORT")
            or cls().metadata_host,
            **limits,
        )


def _matching(environment: Mapping[str, str], name: str, form: re.Pattern[str], allowed: str) -> str:
    text = environment.get(name) or ""
    if text and not form.fullmatch(text):
        raise ValueError(f"{name}: got {text[:80]!r}; allowed: {allowed}, or nothing")
    return text


def _whole_number(environment: Mapping[str, str], name: str, default: int, least: int, largest: int) -> int:
    text = environment.get(name) or str(default)
    plain = text.isascii() and text.isdecimal() and len(text) <= len(str(largest))
    if not plain or not least <= int(text) <= largest:
        raise ValueError(f"{name}: got {text[:80]!r}; allowed: a whole number from {least} to {largest}")
    return int(text)


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    if not 0 < len(urls) <= ENDPOINTS_MAX:
        raise ValueError(f"WARMPOOL_URLS: got {len(urls)} URLs; allowed: 1 to {ENDPOINTS_MAX}, separated by commas")
    for url in urls:
        parts = urlsplit(url)
        # Not shown: it would put a password into a log.
        if parts.username or parts.password:
            raise ValueError("WARMPOOL_URLS: got a URL with a user; allowed: http://HOST:PORT or https://HOST")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"WARMPOOL_URLS: got {url!r}; allowed: http://HOST:PORT or https://HOST, with a path if any"
            )
    return urls
