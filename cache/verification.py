"""Whether a stored object is what it says it is: read whole, digest, signature, and the name that it lies under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from cache.artifact import unpack
from cache.errors import Damaged, Foreign, Untrusted
from cache.ingredients import digest_ingredients
from cache.signed_store import SignedStore


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one object.

    Attributes:
        fault: What is wrong with it, "" if nothing is.
        untrusted: Whether that is its signature alone.
        ingredients: What a sound executable was made of.
    """

    fault: str = ""
    untrusted: bool = False
    ingredients: dict[str, str] = field(default_factory=dict)


def check(store: SignedStore, path: str) -> Checked:
    """Read an object; one that has neither a digest nor a signature is sound.

    Raises:
        NotStored: It is gone.
        StoreUnavailable: It cannot be read now, which says nothing of it.
    """
    folder, _, name = path.partition("/")
    try:
        match folder:
            case "executables":
                return Checked(ingredients=_executable(store, path, name))
            case "programs":
                unpack(store.get(path), key=name, trust=store.trust)
            case "weights":
                _weights(store, path, name)
            case "models":
                _document(store, path)
    except Untrusted as error:
        return Checked(f"it is not trusted: {error.reason}", untrusted=True)
    except Damaged as error:
        return Checked(f"it is damaged: {error.reason}")
    except Foreign as error:
        return Checked(f"it was made for something else ({error.shown})")
    return Checked()


def _executable(store: SignedStore, path: str, key: str) -> dict[str, str]:
    header, _ = unpack(store.get(path), key=key, trust=store.trust)
    made_of = digest_ingredients(header.ingredients)
    if made_of != key:
        raise Foreign(f"artifact {key[:16]}", {"key": (key, made_of)})
    return header.ingredients


def _weights(store: SignedStore, path: str, digest: str) -> None:
    with store.local_path(path).open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != digest:
        raise Damaged(f"weights {digest[:16]}", f"their digest is {found[:16]}")


def _document(store: SignedStore, path: str) -> None:
    try:
        msgspec.json.decode(store.get(path))
    except msgspec.MsgspecError as error:
        raise Damaged(repr(path), f"it is no JSON: {error}") from error
