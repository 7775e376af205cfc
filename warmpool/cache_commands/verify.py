"""`warmpool cache verify`: read every object of a store, set aside what is damaged, ask for what has to be made again.

Signatures count as the given keys say. What no key that is given here signed is reported and stays, for others may know
who did; a false signature, or that of a distrusted key, is a fault.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cache.encrypted_store import EncryptedStore
from cache.errors import Damaged, Foreign, NotStored, Unreadable
from cache.ingredients import differences
from cache.key import made_for
from cache.layout import CHECKED_FOLDERS
from cache.quarantine import Kept
from cache.signed_store import SignedStore
from cache.store import is_path
from cache.verification import Checked, check, set_aside
from cache.wanted import want
from warmpool.cache_commands.opened import counting, opened, shown_bytes
from warmpool.errors import printable
from warmpool.manifest import executable_path, manifest_path, target_path
from warmpool.settings import add_store_flags
from warmpool.survey import Published, Survey, survey


@dataclass(slots=True)
class Verified:
    """What a verification found; everything but `objects` is a reason by path.

    Attributes:
        objects: Every object that was read.
        read_bytes: How much that was.
        misplaced: Sound executables that only targets for other machines than theirs name.
        missing: What is not there, and manifests or targets need.
        unreadable: What this process cannot read, for lack of a key or a permission: it may well be sound.
        problems: Documents that are not to be moved: whole, but not understood here, or naming what is for others.
        wanted: Keys of executables that are needed, and missing or faulty.
        unencrypted: How many objects are not encrypted, though a key is given; None if none is.
        other_keys: How many are encrypted under another key than the first that is given; None if none is.
        unknown_too: Whether it is a fault, too, that nobody who is known here signed an object.
    """

    objects: dict[str, Checked] = field(default_factory=dict)
    read_bytes: int = 0
    misplaced: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    unencrypted: int | None = None
    other_keys: int | None = None
    unknown_too: bool = False

    @property
    def faults(self) -> dict[str, str]:
        """What is to be set aside."""
        found = {path: one.fault for path, one in self.objects.items() if self.unknown_too or not one.unknown}
        return {path: fault for path, fault in found.items() if fault} | self.misplaced

    @property
    def untrusted(self) -> dict[str, str]:
        """What stays, though nobody who is known here signed it."""
        return {path: one.fault for path, one in self.objects.items() if one.unknown and not self.unknown_too}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="report only: nothing is moved, nothing asked for")
    parser.add_argument(
        "--quarantine-untrusted",
        action="store_true",
        help="set aside what is not signed, or by a key that is not given here, too: nobody in the fleet has it then",
    )


def main(args: argparse.Namespace) -> int:
    """Verify; 0 when everything is sound and there, 1 if something is not."""
    store = opened(args)
    unknown_too = args.quarantine_untrusted
    found = verify(store, survey(store), unknown_too=unknown_too)
    quarantined: list[Kept] = []
    if not args.dry_run:
        quarantined = [
            kept
            for path in found.faults
            if (kept := set_aside(store, path, found.misplaced.get(path, ""), unknown=unknown_too))
        ]
        for key, reason in found.wanted.items():
            want(store, key, reason)
    result = {
        "checked": len(found.objects),
        "checked_bytes": found.read_bytes,
        "faults": found.faults,
        "untrusted": found.untrusted,
        "quarantined": [msgspec.to_builtins(kept) for kept in quarantined],
        "missing": found.missing,
        "unreadable": found.unreadable,
        "problems": found.problems,
        "wanted": [] if args.dry_run else list(found.wanted),
    }
    if found.unencrypted is not None:
        result |= {"unencrypted": found.unencrypted, "other_keys": found.other_keys}
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        _show(result, dry_run=args.dry_run)
    return 0 if _is_sound(result) else 1


def verify(store: SignedStore, surveyed: Survey, *, unknown_too: bool = False) -> Verified:
    """Read every object that has a digest or a signature, and see that all is there that manifests and targets need."""
    found = Verified(unknown_too=unknown_too)
    entries = [entry for folder in CHECKED_FOLDERS for entry in store.entries(folder)]
    with counting("verifying", len(entries)) as step:
        for entry in entries:
            try:
                found.objects[entry.path] = check(store, entry.path)
                found.read_bytes += entry.size_bytes
            except NotStored:  # removed meanwhile
                pass
            except Unreadable as error:
                found.unreadable[entry.path] = str(error)
            step()
    _count_encryption(found, store, [entry.path for entry in entries])
    _find_misplaced(found, surveyed)
    _find_missing(found, surveyed)
    faults, told = found.faults, found.faults | found.untrusted | found.unreadable
    found.problems |= {path: reason for path, reason in surveyed.problems.items() if path not in told}
    for _, _, spec in surveyed.executables():
        path = executable_path(spec.key)
        if reason := faults.get(path) or found.missing.get(path):
            found.wanted.setdefault(spec.key, reason)
    return found


def _find_misplaced(found: Verified, surveyed: Survey) -> None:
    """Sound executables that targets for other machines than their own name; lanes would refuse them.

    Where a target for its own machines names it too, the executable is right and the other target is wrong.
    """
    wrong: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by executable and target
    right = set()
    for version, digest, spec in surveyed.executables():
        path = executable_path(spec.key)
        checked = found.objects.get(path, Checked("it is not there"))
        if checked.fault:
            continue
        if differ := differences(version.targets[digest].fingerprint, made_for(checked.ingredients)):
            wrong[path][_target_path(version, digest)] = ", ".join(differ)
        else:
            right.add(path)
    for path, targets in wrong.items():
        for target, names in targets.items():
            if path in right:
                found.problems[target] = f"it names {path}, which is for other machines ({names})"
            else:
                found.misplaced[path] = f"{target} names it, but it is for other machines ({names})"


def _find_missing(found: Verified, surveyed: Survey) -> None:
    needed = {manifest_path(model, version): "it is served" for model, version in surveyed.served.items()}
    for version in surveyed.versions:
        needed |= dict.fromkeys(version.content_paths(), f"{version.name} needs it")
    for version, digest, spec in surveyed.executables():
        path = executable_path(spec.key)
        if is_path(path):
            needed.setdefault(path, f"{version.name} needs it on machines {digest}")
        else:
            found.problems[_target_path(version, digest)] = f"it names {spec.key!r}, which is no key"
    there = found.objects.keys() | found.unreadable.keys()
    found.missing = {path: reason for path, reason in needed.items() if path not in there}


def _count_encryption(found: Verified, store: SignedStore, paths: list[str]) -> None:
    """How much a change of keys, or from none to one, has left."""
    encrypted = store.inner
    if not isinstance(encrypted, EncryptedStore) or encrypted.keys is None:
        return
    found.unencrypted = found.other_keys = 0
    for path in paths:
        with suppress(NotStored, Damaged, Foreign, Unreadable):  # which was told
            name = encrypted.wrapped_by(path)
            found.unencrypted += name == ""
            found.other_keys += bool(name) and name != encrypted.keys.first


def _is_sound(result: dict[str, Any]) -> bool:
    return not any(result[name] for name in ("faults", "untrusted", "missing", "unreadable", "problems"))


def _target_path(version: Published, digest: str) -> str:
    return target_path(version.manifest.model, version.manifest.version, digest)


def _show(result: dict[str, Any], *, dry_run: bool) -> None:
    print(f"checked {result['checked']} objects, {shown_bytes(result['checked_bytes'])}")
    for kind, name in {"faults": "fault" if dry_run else "quarantined", "untrusted": "left"}.items():
        for path, reason in result[kind].items():
            print(f"{name} {path}: {printable(reason)}")
    if result["untrusted"]:
        print(
            f"{len(result['untrusted'])} objects are signed by nobody who is known here: give the keys of who did with "
            "--trusted-keys; --quarantine-untrusted sets them aside, for everybody"
        )
    for kind in ("missing", "unreadable", "problems"):
        for path, reason in result[kind].items():
            print(f"{kind.removesuffix('s')} {path}: {printable(reason)}")
    if result["wanted"]:
        print(f"{len(result['wanted'])} executables are asked for: `warmpool cache fill` compiles them")
    if _is_sound(result):
        print("everything is sound")
    _show_encryption(result.get("unencrypted", 0), result.get("other_keys", 0))


def _show_encryption(unencrypted: int, other_keys: int) -> None:
    if unencrypted or other_keys:
        print(f"{unencrypted} objects are not encrypted, {other_keys} under another key than the first that is given")
