"""`warmpool cache verify`: read every object of a store, set aside what is damaged, ask for what has to be made again.

Signatures count as the given keys say. Where not one artifact bears a signature that counts, these are more likely the
wrong keys than a store of forgeries: then nothing is moved, unless that is asked for.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cache.audit import Audit
from cache.errors import NotStored
from cache.ingredients import differences
from cache.quarantine import quarantine
from cache.signed_store import SignedStore
from cache.verification import Checked, check
from cache.wanted import want
from warmpool.cache_commands.opened import counting, opened, shown_bytes, store_settings
from warmpool.manifest import executable_path
from warmpool.settings import add_store_flags
from warmpool.survey import Survey, survey

FOLDERS = ("executables", "programs", "weights", "models")
_MADE_FOR = "fingerprint."


class WrongKeys(ValueError):
    """No artifact of the store is signed by a key that is trusted here."""


@dataclass(slots=True)
class Verified:
    """What a verification found: every object that was read, and why objects that targets name are missing."""

    objects: dict[str, Checked] = field(default_factory=dict)
    read_bytes: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="report only: nothing is moved, nothing asked for")
    parser.add_argument(
        "--quarantine-untrusted",
        action="store_true",
        help="set aside what is not trusted even where nothing at all is signed by a trusted key",
    )


def main(args: argparse.Namespace) -> int:
    """Verify; 0 when everything is sound and there, 1 if something is not."""
    store = opened(args)
    audit = Audit(store_settings(args).audit_log)
    surveyed = survey(store)
    found = verify(store, surveyed)
    if not args.dry_run and not args.quarantine_untrusted:
        _require_right_keys(found)
    needed = {executable_path(spec.key) for _, _, spec in surveyed.executables()}
    asked = found.missing | {path: reason for path, reason in found.faults.items() if path in needed}
    quarantined = []
    if not args.dry_run:
        for path, reason in found.faults.items():
            if kept := quarantine(store.bottom, path, reason):
                quarantined.append(kept)
                audit.record("quarantine", path=path, key=kept.key, reason=reason)
        for path, reason in asked.items():
            want(store, path.rpartition("/")[2], reason)
    result = {
        "checked": len(found.objects),
        "checked_bytes": found.read_bytes,
        "faults": found.faults,
        "quarantined": [msgspec.to_builtins(kept) for kept in quarantined],
        "missing": found.missing,
        "wanted": [] if args.dry_run else [path.rpartition("/")[2] for path in asked],
    }
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        _show(result, dry_run=args.dry_run)
    return 1 if found.faults or found.missing else 0


def verify(store: SignedStore, surveyed: Survey) -> Verified:
    """Read every object that has a digest or a signature, and see that all is there that targets name."""
    found = Verified()
    entries = [entry for folder in FOLDERS for entry in store.entries(folder)]
    with counting("verifying", len(entries)) as step:
        for entry in entries:
            try:
                found.objects[entry.path] = check(store, entry.path)
                found.read_bytes += entry.size_bytes
            except NotStored:  # removed meanwhile
                pass
            step()
    found.faults = {path: checked.fault for path, checked in found.objects.items() if checked.fault}
    _check_targets(found, surveyed)
    return found


def _check_targets(found: Verified, surveyed: Survey) -> None:
    """Sound executables are still wrong where a target of another kind of machine than theirs names them."""
    for version, digest, spec in surveyed.executables():
        path = executable_path(spec.key)
        checked = found.objects.get(path)
        if checked is None:
            found.missing[path] = f"{version.name} needs it on machines {digest}"
        elif not checked.fault:
            made_for = {
                name.removeprefix(_MADE_FOR): value
                for name, value in checked.ingredients.items()
                if name.startswith(_MADE_FOR)
            }
            if differ := differences(version.targets[digest].fingerprint, made_for):
                found.faults[path] = f"a target for machines {digest} names it; it is for others ({', '.join(differ)})"


def _require_right_keys(found: Verified) -> None:
    artifacts = [one for path, one in found.objects.items() if path.startswith(("executables/", "programs/"))]
    if artifacts and all(one.untrusted for one in artifacts):
        raise WrongKeys(
            f"none of the {len(artifacts)} artifacts is signed by a key that is trusted here: are these the right "
            "keys? Nothing was moved; --quarantine-untrusted sets all of them aside"
        )


def _show(result: dict[str, Any], *, dry_run: bool) -> None:
    print(f"checked {result['checked']} objects, {shown_bytes(result['checked_bytes'])}")
    for path, reason in result["faults"].items():
        print(f"{'fault' if dry_run else 'quarantined'} {path}: {reason}")
    for path, reason in result["missing"].items():
        print(f"missing {path}: {reason}")
    if result["wanted"]:
        print(f"{len(result['wanted'])} executables are asked for: `warmpool cache fill` compiles them")
    if not (result["faults"] or result["missing"]):
        print("everything is sound")
