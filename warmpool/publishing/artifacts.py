"""Artifacts of a target's executables, checked: those in the store, and those that a child wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cache.artifact import unpack
from cache.errors import Damaged, Foreign, NotStored, Untrusted
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from cache.sweep import Reused
from warmpool.errors import PublishError
from warmpool.manifest import executable_path
from warmpool.publishing.entries import Entry


class Artifacts:
    """Of one store.

    Args:
        store: Where they are.
        reused: Told of every one that is used again.
        say: Told of one that is not sound.
    """

    def __init__(self, store: SignedStore, reused: Reused, say: Callable[[str], None]) -> None:
        self._store = store
        self._reused = reused
        self._say = say

    def files(self, entries: Iterable[Entry]) -> dict[str, Path]:
        """Files with the artifacts of entries, by key, as far as there are any."""
        found = {entry.key: self.file(entry) for entry in {entry.key: entry for entry in entries}.values()}
        return {key: path for key, path in found.items() if path}

    def file(self, entry: Entry) -> Path | None:
        """A file with an entry's artifact; it is said if there is one that is not sound."""
        try:
            return self._verified(entry)
        except (Damaged, Foreign, Untrusted) as error:
            self._say(f"{entry.name}: {error}; it is compiled anew")
            return None

    def sound_file(self, entry: Entry) -> Path | None:
        """The same, and nothing is said: it was when it was looked for first."""
        with suppress(Damaged, Foreign, Untrusted):
            return self._verified(entry)
        return None

    def has(self, key: str) -> bool:
        """Whether an executable is there, whatever it was made of."""
        try:
            unpack(self._store.get(executable_path(key)), key=key, kind="executable", trust=self._store.trust)
            self._reused.keep(executable_path(key))
        except (NotStored, Damaged, Foreign, Untrusted):
            return False
        return True

    def _verified(self, entry: Entry) -> Path | None:
        path = executable_path(entry.key)
        try:
            unpack(self._store.get(path), key=entry.key, trust=self._store.trust, ingredients=entry.ingredients)
            self._reused.keep(path)
            return self._store.local_path(path)
        except NotStored:
            return None


def read_made(entry: Entry, file: Path) -> bytes:
    """The artifact that a child wrote, read once: what is checked here and tried is what is signed.

    Raises:
        PublishError: It is not what the child was to make.
    """
    data = file.read_bytes()
    try:
        unpack(data, key=entry.key, kind="executable", ingredients=entry.ingredients, trust=ANYONE)
    except (Damaged, Foreign) as error:
        raise PublishError(f"{entry.name}: what was compiled cannot be stored: {error}") from error
    return data
