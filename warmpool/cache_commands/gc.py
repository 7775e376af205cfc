"""`warmpool cache gc`: remove what no manifest needs, and what only kinds of machine need that are not about any more.

Versions never go by themselves: as long as a manifest is there, its weights and programs are needed. A target, and the
executables that it alone names, goes when machines of its kind were seen, but not for a while, and nobody published for
it either. A kind that was never seen may be one whose instances cannot leave word, since they may not write to the
store: its targets stay until somebody asks for them to go. What is younger than a day stays, for it may belong to a
publish under way. So does what is in no folder of ours.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import msgspec

from cache.layout import folder_of
from cache.quarantine import quarantined
from cache.sightings import MARK_EVERY_S, sightings
from cache.signed_store import SignedStore
from cache.store import Entry
from cache.sweep import GRACE_S, Needless, Swept, sweep
from warmpool.cache_commands.opened import opened, shown_bytes
from warmpool.rollout.record import record_path, spec_of
from warmpool.rollout.serving_change import read_serving
from warmpool.settings import add_store_flags
from warmpool.survey import Survey, survey

DAY_S = 24 * 3600.0
KEEP_DAYS = 90.0


class Unreadable(ValueError):
    """A manifest or target cannot be read, so what it needs is not known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="list what would go, with its bytes; remove nothing")
    parser.add_argument(
        "--keep-days",
        type=_days,
        default=KEEP_DAYS,
        metavar="N",
        help="how long executables stay for a kind of machine that nobody sees (2 at least), and what goes by the time "
        "when it was written: quarantined objects, shared entries of JAX's cache (%(default)g); word of machines stays",
    )
    parser.add_argument(
        "--forget-unseen",
        action="store_true",
        help="let executables go too for a kind of machine that never left word (no instance of it may write here)",
    )
    parser.add_argument(
        "--grace-hours",
        type=_hours,
        default=GRACE_S / 3600,
        metavar="N",
        help="what is younger stays in any case (%(default)g)",
    )


def main(args: argparse.Namespace) -> int:
    """Sweep. Raises Unreadable, and removes nothing, where it is not known what is needed."""
    store = opened(args)
    found = survey(store)
    keep_s = args.keep_days * DAY_S
    _require_known(store, found, keep_s)
    swept = collect(
        store,
        found,
        keep_s=keep_s,
        grace_s=args.grace_hours * 3600,
        dry_run=args.dry_run,
        forget_unseen=args.forget_unseen,
    )
    result = {
        "dry_run": args.dry_run,
        "removed": [{"path": entry.path, "bytes": entry.size_bytes} for entry in swept.removed],
        "removed_bytes": swept.removed_bytes,
        "kept": swept.kept,
        "kept_bytes": swept.kept_bytes,
    }
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        _show(result, swept)
    return 0


def collect(
    store: SignedStore, found: Survey, *, keep_s: float, grace_s: float, dry_run: bool, forget_unseen: bool = False
) -> Swept:
    """Remove what nobody needs, which is looked up once more before anything goes."""

    def again() -> Needless:
        now = survey(store)
        _require_known(store, now, keep_s)
        return _needless(store, now, keep_s, forget_unseen)

    needless = _needless(store, found, keep_s, forget_unseen)
    return sweep(store.bottom, needless, grace_s=grace_s, dry_run=dry_run, again=again)


def _needless(store: SignedStore, found: Survey, keep_s: float, forget_unseen: bool) -> Needless:  # noqa: FBT001
    needed = _needed(store, found, keep_s, forget_unseen)

    def needless(entry: Entry, age_s: float) -> bool:
        folder = folder_of(entry.path)
        if folder is None:
            return False
        if entry.path in needed:
            return False
        if folder.ages:
            return age_s > min(keep_s, folder.useful_s)
        return folder.content != "coordination"

    return needless


def _require_known(store: SignedStore, found: Survey, keep_s: float) -> None:
    """What is set aside may come back, so what it needs counts as well, for as long as it is kept."""
    for path, problem in found.problems.items():
        raise Unreadable(f"{path} cannot be read ({problem}), so what it needs is not known; nothing was removed")
    oldest_s = time.time() - keep_s
    for kept in quarantined(store.bottom):
        folder, _, name = kept.path.rpartition("/")
        is_document = kept.path.startswith("models/") and name != "serving.json"
        if is_document and kept.when.timestamp() >= oldest_s and name not in store.names(folder):
            raise Unreadable(
                f"{kept.path} is set aside ({kept.reason}), so what it needs is not known: publish that version again, "
                f"or remove {kept.kept_at}; nothing was removed"
            )


def _needed(store: SignedStore, found: Survey, keep_s: float, forget_unseen: bool) -> set[str]:  # noqa: FBT001
    """Paths that a manifest needs, for every kind of machine that is still about, and records of what is served.

    Without the record of a canary that was rolled back, and that `serving.json` still names, it would get requests.
    One that runs says so once every `MARK_EVERY_S`: it counts for twice as long, whatever the operator says.
    """
    oldest_s = time.time() - max(keep_s, 2 * MARK_EVERY_S)
    seen_s = {digest: one.seen_s for digest, one in sightings(store).items()}
    written_s = {entry.path: entry.modified_s for entry in store.entries("models")}
    needed = {_record_path(store, model) for model in found.served}
    for version in found.versions:
        needed.update(version.paths())
        for digest in version.targets:
            paths = list(version.target_paths(digest))
            unseen_s = 0.0 if forget_unseen else float("inf")
            if max(seen_s.get(digest, unseen_s), written_s.get(paths[0], 0.0)) >= oldest_s:
                needed.update(paths)
    return needed


def _record_path(store: SignedStore, model: str) -> str:
    serving, _ = read_serving(store, model)
    return record_path(model, spec_of(serving))


def _days(text: str) -> float:
    return _at_least_zero(text, "a number of days, 0 or more")


def _hours(text: str) -> float:
    return _at_least_zero(text, "a number of hours, 0 or more")


def _at_least_zero(text: str, allowed: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}")
    return number


def _show(result: dict[str, Any], swept: Swept) -> None:
    for entry in swept.removed:
        print(f"{'would remove' if result['dry_run'] else 'removed'} {entry.path}, {shown_bytes(entry.size_bytes)}")
    folders = Counter(entry.path.partition("/")[0] for entry in swept.removed)
    verb = "would be removed" if result["dry_run"] else "removed"
    named = ", ".join(f"{count} of {name}" for name, count in sorted(folders.items())) or "nothing"
    print(f"{named} {verb}, {shown_bytes(swept.removed_bytes)}; {swept.kept} stay, {shown_bytes(swept.kept_bytes)}")
