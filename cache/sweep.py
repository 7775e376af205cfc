"""Removing what nobody needs. What is needed the caller says; what is young may be part of a publish under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cache.store import Entry, Store

GRACE_S = 24 * 3600.0


@dataclass(slots=True)
class Swept:
    """What a sweep removes (or would), and what it leaves."""

    removed: list[Entry] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0

    @property
    def removed_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.removed)


def sweep(store: Store, needless: Callable[[Entry, float], bool], *, grace_s: float = GRACE_S, dry_run: bool) -> Swept:
    """Remove every object that is needless and older than the grace.

    Args:
        store: The store as it lies there.
        needless: Whether nobody needs an object; gets its entry and its age in seconds.
        grace_s: Younger objects stay, whatever they are.
        dry_run: Only say what would be removed.
    """
    swept = Swept()
    now_s = time.time()
    for entry in list(store.entries("")):
        age_s = now_s - entry.modified_s
        if age_s < grace_s or not needless(entry, age_s):
            swept.kept += 1
            swept.kept_bytes += entry.size_bytes
            continue
        if not dry_run:
            store.delete(entry.path)
        swept.removed.append(entry)
    return swept
