"""What was found to be wrong is set aside, not destroyed: it can be looked at, and put back if that was a mistake.

An object moves to `quarantine/<when>-<random>/<its path>`, with `reason.json` beside it. The copy is whole before the
original goes; killed between the two, the original is still there and is found again. It only goes if it is still the
one that was looked at, so that a good one which took its place meanwhile stays.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from cache.errors import NotStored, StoreUnavailable
from cache.records import READ_BYTES_MAX, coordinated
from cache.store import Store, is_path

FOLDER = "quarantine"
_REASON = "reason.json"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside a quarantined object: the path it had, what is wrong with it, and when it was set aside."""

    path: str
    reason: str
    when: Annotated[datetime, msgspec.Meta(tz=True)]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One quarantined object: the path it had, the key that its name was, why, when, and where it is now."""

    path: str
    key: str
    reason: str
    when: datetime
    kept_at: str


def quarantine(store: Store, path: str, reason: str, generation: str | None = None) -> Kept | None:
    """Set an object aside.

    Args:
        store: The store as it lies there, below signatures and encryption.
        path: Of the object.
        reason: What is wrong with it.
        generation: Of the one that was looked at, as `Store.get_versioned` has it; None: whatever is there now.

    Returns:
        What is kept; None if the object is gone already, or another one took its place.

    Raises:
        StoreUnavailable: The original is still there then.
    """
    store.discard(path)  # what is set aside is what lies in the store, not what is kept of it here
    said = Reason(path=path, reason=reason, when=datetime.now(UTC))
    place = f"{FOLDER}/{said.when:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    kept = _kept(place, said)
    try:
        if path.startswith("weights/"):
            found = _listed(store, path)
            if generation not in {None, found}:
                return None
            store.put_file(kept.kept_at, store.local_path(path))
        else:
            data, found = store.get_versioned(path)
            if generation not in {None, found}:
                return None
            store.put(kept.kept_at, data)
    except NotStored:
        return None
    try:
        store.put(f"{place}/{_REASON}", msgspec.json.encode(said))
    except StoreUnavailable:  # the disk is full: a copy that nobody hears of would only fill it more
        with suppress(StoreUnavailable):
            store.delete(kept.kept_at)
        raise
    if not store.delete_if(path, found):
        _forget(store, kept)
        return None
    store.discard(path)
    return kept


def quarantined(store: Store) -> list[Kept]:
    """Everything that is set aside, the oldest first. Whose reason cannot be read is not: nobody signs a reason."""
    found = []
    for place in store.names(FOLDER):
        with suppress(NotStored, msgspec.MsgspecError):  # killed before the reason was there: the original still is
            said = coordinated(store.get(f"{FOLDER}/{place}/{_REASON}", bytes_max=READ_BYTES_MAX), Reason)
            if is_path(said.path):
                found.append(_kept(f"{FOLDER}/{place}", said))
    return found


def restore(store: Store, kept: Kept) -> bool:
    """Put an object back where it was; False, and nothing happens, if another one is there by now."""
    folder, _, name = kept.path.rpartition("/")
    if name in store.names(folder):
        return False
    store.put_file(kept.path, store.local_path(kept.kept_at))
    _forget(store, kept)
    return True


def _kept(place: str, said: Reason) -> Kept:
    return Kept(
        path=said.path,
        key=said.path.rpartition("/")[2],
        reason=said.reason,
        when=said.when,
        kept_at=f"{place}/{said.path}",
    )


def _listed(store: Store, path: str) -> str:
    """The generation of an object that is too large to be read for it."""
    for entry in store.entries(path.partition("/")[0]):
        if entry.path == path:
            return entry.generation
    raise NotStored(path)


def _forget(store: Store, kept: Kept) -> None:
    """Remove what is kept. The reason goes first: without it nothing is said to be set aside."""
    store.delete(f"{kept.kept_at.removesuffix(f'/{kept.path}')}/{_REASON}")
    store.delete(kept.kept_at)
