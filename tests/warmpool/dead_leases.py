"""Leases of a process that was killed, which others take over when they have run out."""

from __future__ import annotations

import contextlib
import json

from cache.errors import NotStored
from cache.gcs_store import GcsStore
from cache.local_store import LocalStore


def shorten(bottom: LocalStore | GcsStore, pid: int) -> None:
    """Let those of a dead process run out at once. A short time from the first might be missed by who holds them."""
    for path in (f"leases/{key}" for key in bottom.names("leases")):
        content = json.loads(bottom.get(path))
        if content["owner"].endswith(f":{pid}"):
            bottom.put(path, json.dumps(content | {"ttl_s": 0.1}).encode())


def owners(bottom: LocalStore | GcsStore) -> set[int]:
    """The processes that have some."""
    found = set()
    for key in bottom.names("leases"):
        with contextlib.suppress(NotStored):  # given up meanwhile
            found.add(int(json.loads(bottom.get(f"leases/{key}"))["owner"].rpartition(":")[2]))
    return found
