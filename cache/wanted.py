"""Executables that somebody should compile again: one small object a key, `wanted/<key>`, until it is there."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from cache.store import Store

FOLDER = "wanted"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A key, why it is wanted, and since when (RFC 3339)."""

    key: str
    reason: str
    since: str


def want(store: Store, key: str, reason: str) -> bool:
    """Ask for an executable; whether nobody had yet."""
    asked = Wanted(key=key, reason=reason, since=datetime.now(UTC).isoformat(timespec="milliseconds"))
    return store.put_if(f"{FOLDER}/{key}", msgspec.json.encode(asked), None) is not None


def wanted(store: Store) -> list[str]:
    """Keys that are asked for."""
    return store.names(FOLDER)


def settle(store: Store, key: str) -> None:
    """It is there, or nobody needs it any more."""
    store.delete(f"{FOLDER}/{key}")
