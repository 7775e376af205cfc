"""Whether a stored object is what it says it is: read whole, digest, signature, and the name that it lies under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from cache.artifact import Kind, unpack
from cache.errors import Damaged, Discredited, Foreign, NotStored, Untrusted, not_read
from cache.ingredients import digest_ingredients
from cache.layout import Folder, folder_of
from cache.quarantine import Kept, quarantine
from cache.records import decoded
from cache.signed_store import SignedStore


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one object.

    Attributes:
        fault: What is wrong with it, "" if nothing is.
        unknown: Whether that is only that nobody who is known here signed it, or that it is of a format which is not:
            other readers may know.
        ingredients: What a sound artifact was made of.
    """

    fault: str = ""
    unknown: bool = False
    ingredients: dict[str, str] = field(default_factory=dict)


def check(store: SignedStore, path: str, artifact: bytes | None = None) -> Checked:
    """Read an object; one that has neither a digest nor a signature is sound.

    Args:
        store: Where it is.
        path: Of the object.
        artifact: What was read of an artifact already.

    Raises:
        NotStored: It is gone.
        Unreadable: It cannot be read by this process, which says nothing of it.
        StoreUnavailable: Nor does that.
    """
    try:
        return Checked(ingredients=_read(store, path, artifact))
    except Untrusted as error:
        return Checked(f"it is not trusted: {error.reason}", unknown=not isinstance(error, Discredited))
    except Damaged as error:
        return Checked(f"it is damaged: {error.reason}")
    except Foreign as error:
        newer = error.differences.keys() == {"format"}  # another release reads it
        return Checked(f"it was made for something else ({error.shown})", unknown=newer)


def set_aside(
    store: SignedStore, path: str, reason: str = "", generation: str | None = None, *, unknown: bool = False
) -> Kept | None:
    """Quarantine an object, and tell the audit log.

    Args:
        store: Where it is.
        path: Of the object.
        reason: What is wrong with it; "": it is looked at once more, so that one which took its place since it was
            found to be faulty stays if it is sound.
        generation: Of the one that the reason is about; None: whatever is there now.
        unknown: Whether it goes, too, if only nobody who is known here signed it. Who knows fewer keys than others
            would take from them what they trust.

    Returns:
        What is kept; None if it is gone, another one took its place, or nothing is wrong with it.

    Raises:
        StoreUnavailable: It cannot be moved now.
    """
    store.discard(path)
    try:
        if not reason:
            if not path.startswith("weights/"):
                generation = store.bottom.get_versioned(path)[1]
            found = check(store, path)
            reason = "" if found.unknown and not unknown else found.fault
        kept = quarantine(store.bottom, path, reason, generation) if reason else None
    except NotStored:
        return None
    if kept:
        store.discard(path)
        store.audit.record("quarantine", path=path, key=kept.key, reason=reason)
    return kept


def _read(store: SignedStore, path: str, artifact: bytes | None) -> dict[str, str]:
    match folder_of(path):
        case Folder(content="artifact", kind="program"):
            return _ingredients(store, path, "program", artifact)
        case Folder(content="artifact", kind=kind) if kind:
            return _made_of(store, path, kind, artifact)
        case Folder(content="blob"):
            _weights(store, path, path.rpartition("/")[2])
        case Folder(content="document"):
            _document(store, path)
    return {}


def _made_of(store: SignedStore, path: str, kind: Kind, artifact: bytes | None) -> dict[str, str]:
    """The ingredients of an artifact whose key is their digest."""
    ingredients = _ingredients(store, path, kind, artifact)
    key = path.rpartition("/")[2]
    if (made_of := digest_ingredients(ingredients)) != key:
        raise Foreign(f"artifact {key[:16]}", {"key": (key, made_of)})
    return ingredients


def _ingredients(store: SignedStore, path: str, kind: Kind, artifact: bytes | None) -> dict[str, str]:
    """Those of an artifact of this kind that lies where its key says."""
    key = path.rpartition("/")[2]
    data = store.get(path) if artifact is None else artifact
    header, _ = unpack(data, key=key, kind=kind, trust=store.trust)
    return header.ingredients


def _weights(store: SignedStore, path: str, digest: str) -> None:
    try:
        with store.local_path(path).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise NotStored(path) from None
    except OSError as error:
        raise not_read(path, error) from error
    finally:
        store.discard(path)  # decrypted, it would take up memory for as long as the store object lives
    if found != digest:
        raise Damaged(f"weights {digest[:16]}", f"their digest is {found[:16]}")


def _document(store: SignedStore, path: str) -> None:
    try:
        decoded(store.get(path))
    except msgspec.MsgspecError as error:
        raise Damaged(repr(path), f"it is no JSON: {error}") from error
