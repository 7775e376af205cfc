"""What a store is: named objects in folders, whole or not there at all.

A path is relative, with "/" between parts. A put is atomic and durable: a reader sees the whole old object, the whole
new one, or none. Readers take no lock. Whatever writes an object gives it another generation, `put` and `touch` as much
as `put_if`: a generation that is still there was not written since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored object: its path, its size, when it was last written (seconds since the epoch), its generation."""

    path: str
    size_bytes: int
    modified_s: float
    generation: str


class Store(Protocol):
    """Methods raise StoreUnavailable where the store cannot be reached, ValueError for what is no path."""

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The object's bytes, or no more than the first `bytes_max`; NotStored if there is none."""

    def put(self, path: str, data: bytes) -> None:
        """Store or replace, atomically."""

    def put_file(self, path: str, source: Path) -> None:
        """Store the content of a local file, atomically, without holding it in memory."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def touch(self, path: str) -> None:
        """Let an object be as young as if it were stored now, with another generation; NotStored if there is none."""

    def names(self, folder: str) -> list[str]:
        """Names of the objects and folders that lie directly in a folder, sorted; none if there is no such folder."""

    def entries(self, folder: str) -> Iterator[Entry]:
        """Every object below a folder, "" for the whole store, in no particular order."""

    def local_path(self, path: str) -> Path:
        """A local file with the object's content, which a lane may map; NotStored if there is none.

        The file may go away when this store object does.
        """

    def discard(self, path: str) -> None:
        """Forget what is kept locally of an object, because it was found to be damaged; the object itself stays."""

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        """The object's bytes and its generation; NotStored if there is none."""

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        """Store a small object if it has this generation now, None: if there is none. The new one; None: it has not."""

    def delete_if(self, path: str, generation: str) -> bool:
        """Remove an object if it has this generation now; whether it had."""


def is_path(name: str) -> bool:
    """Whether a name may be that of an object or folder."""
    return _PATH.fullmatch(name) is not None


def require_path(path: str) -> str:
    """The path itself. Raises ValueError if it is none."""
    if not is_path(path):
        raise ValueError(f"{path!r} is not a store path: use names of letters, digits, '.', '_' and '-', joined by '/'")
    return path
