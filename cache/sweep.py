"""Removing what nobody needs. What is needed the caller says; what is young may be part of a publish under way.

Nobody needs a lock for it. A sweep lists what there is, then asks what is needed, then removes what was not written
since it was listed. Who uses an old object again lets it be young first, and only then says that it is needed: either
the sweep hears of that, or it finds another generation, or the object was gone before and who wants it sees that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cache.store import Entry, Store

GRACE_S = 24 * 3600.0
type Needless = Callable[[Entry, float], bool]


@dataclass(slots=True)
class Swept:
    """What a sweep removes (or would), and what it leaves."""

    removed: list[Entry] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0

    @property
    def removed_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.removed)


def sweep(
    store: Store,
    needless: Needless,
    *,
    grace_s: float = GRACE_S,
    dry_run: bool,
    again: Callable[[], Needless] | None = None,
) -> Swept:
    """Remove every object that is needless, older than the grace, and not written since it was listed.

    Args:
        store: The store as it lies there.
        needless: Whether nobody needs an object; gets its entry and its age in seconds.
        grace_s: Younger objects stay, whatever they are.
        dry_run: Only say what would be removed.
        again: What is needless by now. Asked just before the first object goes, if one would.
    """
    swept = Swept()
    now_s = time.time()
    listed = [(entry, now_s - entry.modified_s) for entry in store.entries("")]
    if again and not dry_run and any(age_s >= grace_s and needless(entry, age_s) for entry, age_s in listed):
        needless = again()
    for entry, age_s in listed:
        goes = age_s >= grace_s and needless(entry, age_s)
        if goes and (dry_run or store.delete_if(entry.path, entry.generation)):
            swept.removed.append(entry)
        else:
            swept.kept += 1
            swept.kept_bytes += entry.size_bytes
    return swept


class Reused:
    """Lets old objects be young that somebody uses again, so that no sweep takes them away meanwhile.

    Args:
        store: The store as it lies there. Its folders are listed once, when an object of them is first used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written_s: dict[str, dict[str, float]] = {}  # by folder and path

    def keep(self, path: str) -> None:
        """An object is used from now on, for half the grace at least. What was not listed is written since, or gone.

        Raises:
            NotStored: It is gone.
        """
        folder = path.partition("/")[0]
        if folder not in self._written_s:
            self._written_s[folder] = {entry.path: entry.modified_s for entry in self._store.entries(folder)}
        written_s, now_s = self._written_s[folder], time.time()
        if path not in written_s or now_s - written_s[path] > GRACE_S / 2:
            self._store.touch(path)
            written_s[path] = now_s
