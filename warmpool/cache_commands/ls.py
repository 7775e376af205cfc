"""`warmpool cache ls`: what a store holds, by version and kind of machine."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import msgspec

from cache.quarantine import quarantined
from cache.sightings import sightings
from cache.wanted import wanted
from warmpool.cache_commands.opened import opened, shown_bytes
from warmpool.errors import printable
from warmpool.manifest import Target, executable_path
from warmpool.settings import add_store_flags
from warmpool.survey import Published, survey

_PIPED_COLUMNS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)


def main(args: argparse.Namespace) -> int:
    """List; 1 if a manifest cannot be read."""
    store = opened(args)
    found = survey(store)
    seen = sightings(store)
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    present = set()
    for entry in store.entries(""):
        folder = entry.path.partition("/")[0]
        sizes[folder] += entry.size_bytes
        counts[folder] += 1
        present.add(entry.path)
    listed = {
        "versions": [_version(version, present) for version in found.versions],
        "machines": {digest: {"seen_s": one.seen_s, **_kind(one.ingredients)} for digest, one in seen.items()},
        "folders": {name: {"objects": counts[name], "bytes": sizes[name]} for name in sorted(counts)},
        "quarantined": [msgspec.to_builtins(kept) for kept in quarantined(store.bottom)],
        "wanted": [key for key in wanted(store) if executable_path(key) not in present],
        "problems": found.problems,
    }
    if args.json:
        print(msgspec.json.encode(listed).decode())
    else:
        _show(listed)
    return 1 if found.problems else 0


def _version(version: Published, present: set[str]) -> dict[str, Any]:
    manifest = version.manifest
    return {
        "model": manifest.model,
        "version": manifest.version,
        "stable": version.stable,
        "methods": list(manifest.methods),
        "weights_bytes": manifest.weights.size_bytes,
        "targets": [
            {
                "fingerprint": digest,
                **_kind(target.fingerprint),
                "executables": len(target.executables),
                "bytes": sum(spec.size_bytes for spec in target.executables),
                "missing": _missing(version, digest, target, present),
                "fitted": sorted(target.plans_by_method),
            }
            for digest, target in version.targets.items()
        ],
    }


def _missing(version: Published, digest: str, target: Target, present: set[str]) -> int:
    needed = set(version.target_paths(digest)) - set(map(executable_path, target.references))
    return len(needed - present)


def _executables(target: dict[str, Any]) -> str:
    fitted = f" · fitted: {printable(', '.join(target['fitted']))}" if target["fitted"] else ""
    return f"{target['executables']} · {shown_bytes(target['bytes'])}{fitted}"


def _kind(ingredients: dict[str, str]) -> dict[str, str]:
    return {name: ingredients.get(name, "") for name in ("platform", "device_kind", "jaxlib", "cpu_cores")}


def _show(listed: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("version", "", "weights", "machine", "fingerprint", "executables", "missing", box=None)
    for version in listed["versions"]:
        for target in version["targets"] or [{}]:
            kind = f"{target.get('device_kind', '-')} · jaxlib {target.get('jaxlib', '-')}"
            table.add_row(
                escape(printable(f"{version['model']}/{version['version']}")),
                "stable" if version["stable"] else "",
                shown_bytes(version["weights_bytes"]),
                escape(printable(kind)) if target else "published for no machine",
                target.get("fingerprint", ""),
                escape(_executables(target)) if target else "",
                str(target.get("missing", "")),
            )
    console = Console()
    if not console.is_terminal:
        console.width = _PIPED_COLUMNS
    console.print(table)
    folders = (f"{name} {one['objects']} · {shown_bytes(one['bytes'])}" for name, one in listed["folders"].items())
    lines = ["objects: " + ", ".join(folders)]
    lines += [f"quarantined {kept['when']}: {kept['path']}: {kept['reason']}" for kept in listed["quarantined"]]
    lines += [f"wanted: {key}" for key in listed["wanted"]]
    lines += [f"cannot be read: {path}: {problem}" for path, problem in listed["problems"].items()]
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
