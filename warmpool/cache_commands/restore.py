"""`warmpool cache restore PATH`: put back what was set aside by mistake.

It is looked at once more where it lies then, with the keys that are given here: what is faulty is set aside again.
"""

from __future__ import annotations

import argparse

import msgspec

from cache.layout import CHECKED_FOLDERS
from cache.quarantine import Kept, quarantined, restore
from cache.verification import check, set_aside
from cache.wanted import settle
from warmpool.cache_commands.opened import opened
from warmpool.errors import printable
from warmpool.settings import add_store_flags

_WRITABLE = tuple(f"{name}/" for name in CHECKED_FOLDERS)


class NotRestored(ValueError):
    """Nothing, or more than one object, is set aside under this path; or another object is in its place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument("path", metavar="PATH", help="what it had before, as `cache ls` shows it, or where it is now")


def main(args: argparse.Namespace) -> int:
    """Restore; 0 if it is back, 1 if it is faulty and was set aside again. Raises NotRestored."""
    store = opened(args)
    kept = _chosen(quarantined(store.bottom), args.path)
    if not restore(store.bottom, kept):
        raise NotRestored(f"{kept.path} is there by now: what was set aside stays at {kept.kept_at}")
    store.discard(kept.path)
    fault = check(store, kept.path).fault
    again = set_aside(store, kept.path, fault) if fault else None
    if not fault:
        store.audit.record("restore", path=kept.path, key=kept.key, reason=kept.reason)
        if kept.path.startswith("executables/"):
            settle(store, kept.key)
    if args.json:
        result = {"path": kept.path, "restored": not fault, "fault": fault, "kept_at": again.kept_at if again else ""}
        print(msgspec.json.encode(result).decode())
    elif fault:
        print(printable(f"set aside again {kept.path}: {fault}"))
    else:
        print(printable(f"restored {kept.path}, which was set aside at {kept.when:%Y-%m-%d %H:%M:%S}: {kept.reason}"))
    return 1 if fault else 0


def _chosen(found: list[Kept], path: str) -> Kept:
    """The one that is meant. A reason is not signed: nothing is put back by it that would not be checked there."""
    matching = [one for one in found if path in {one.path, one.kept_at} and one.path.startswith(_WRITABLE)]
    if not matching:
        raise NotRestored(f"{path!r} is not set aside; `warmpool cache ls` lists what is")
    if len(matching) > 1:
        places = ", ".join(one.kept_at for one in matching)
        raise NotRestored(f"{path!r} was set aside more than once: name one of {places}")
    return matching[0]
