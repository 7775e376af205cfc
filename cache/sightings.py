"""Which kinds of machine are still about: each leaves a mark, once a day at most, and what no kind needs can go."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from cache.errors import NotStored
from cache.fingerprint import Fingerprint
from cache.records import READ_BYTES_MAX, coordinated
from cache.store import Store

FOLDER = "fingerprints"
MARK_EVERY_S = 24 * 3600.0


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A fingerprint's ingredients, and when a machine of that kind last used the store (seconds since the epoch)."""

    ingredients: dict[str, str]
    seen_s: float


def mark(store: Store, fingerprint: Fingerprint) -> None:
    """Leave word that a machine of this kind uses the store now."""
    path = f"{FOLDER}/{fingerprint.digest}"
    now_s = time.time()
    with suppress(NotStored, msgspec.MsgspecError):
        if 0 <= now_s - _read(store, path).seen_s < MARK_EVERY_S:
            return
    store.put(path, msgspec.json.encode(Sighting(ingredients=dict(fingerprint.ingredients), seen_s=now_s)))


def sightings(store: Store) -> dict[str, Sighting]:
    """What every kind of machine left, by the digest of its fingerprint."""
    found = {}
    for digest in store.names(FOLDER):
        with suppress(NotStored, msgspec.MsgspecError):
            found[digest] = _read(store, f"{FOLDER}/{digest}")
    return found


def _read(store: Store, path: str) -> Sighting:
    return coordinated(store.get(path, bytes_max=READ_BYTES_MAX), Sighting)
