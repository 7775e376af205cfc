"""`warmpool cache explain MODEL [BUCKET]`: is what this machine needs in the store, and if it is not, why not.

Every executable of a version has a key, made of named ingredients. They are worked out here as a publish on this
machine would, with the compile options of this environment. A hit is there, sound, and made of exactly these. For a
miss the nearest entry is shown, with the ingredients that it has otherwise and both values.

The exit status is 0 if an instance here loads everything and a publish would compile nothing, else 1.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmpool.cache_commands.explanation import Change, Explained, Explainer, Explanation, Needed, needed
from warmpool.cache_commands.opened import opened
from warmpool.errors import printable
from warmpool.manifest import bucket_name
from warmpool.publishing.machines import CHOICES, Children, Limits, compile_options
from warmpool.settings import add_store_flags
from warmpool.survey import Published, survey

_WIDTH = 160  # of tables that go to a file
_LONG_CHARACTERS = 60  # a longer list of words is shown by what differs in it
_KEY_DIGITS = 16


class NotPublished(ValueError):
    """What was asked for is not in the store."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="name of a published model")
    parser.add_argument("bucket", metavar="BUCKET", nargs="?", help="only this one, as batch=1,seq=16; '*' for none")
    add_store_flags(parser)
    parser.add_argument("--version", metavar="V", help="which version; by default the one that is served")
    parser.add_argument("--method", metavar="M", help="only this method")
    parser.add_argument("--platform", choices=CHOICES, default="auto", help="which beside the CPU; as for publish")


def main(args: argparse.Namespace) -> int:
    """Explain; 0 if all is there for this machine, 1 if not."""
    store = opened(args)
    found_there = survey(store)
    of_model = [version for version in found_there.versions if version.manifest.model == args.model]
    try:
        version = _chosen(of_model, args.model, args.version)
    except NotPublished as error:
        problems = found_there.problems.items()
        unread = [f"{path}: {why}" for path, why in problems if path.startswith(f"models/{args.model}/")]
        raise NotPublished("; ".join([str(error), *unread])) from None
    with Children(Limits()) as children:
        machines = children.machines(args.platform)
    explainer = Explainer(store, version, of_model)
    options = compile_options(os.environ)
    found = []
    for one in machines:
        which = needed(version, one.fingerprint.digest, primary=one.primary, platform=one.platform)
        which = _filtered(which, version, args.method, args.bucket)
        found.append(explainer.explain(one.platform, one.fingerprint, options, which))
    if args.json:
        print(msgspec.json.encode({"machines": found}).decode())
    else:
        _show(found)
    return 0 if all(one.complete for one in found) else 1


def _chosen(of_model: Sequence[Published], model: str, version: str | None) -> Published:
    for one in of_model:
        if one.manifest.version == version or (version is None and one.stable):
            return one
    there = ", ".join(one.manifest.version for one in of_model)
    if not there:
        raise NotPublished(f"model {model!r} is not published")
    what = f"version {version!r} of {model!r} is not published" if version else f"no version of {model!r} is served"
    raise NotPublished(f"{what}; allowed with --version: {there}")


def _filtered(which: Sequence[Needed], version: Published, method: str | None, bucket: str | None) -> list[Needed]:
    methods = version.manifest.methods
    if method is not None and method not in methods:
        raise NotPublished(f"--method {method!r}: {version.name} has {', '.join(methods)}")
    chosen = [one for one in which if method in {None, one[0]}]
    if bucket is None:
        return chosen
    asked = set(bucket.split(","))
    found = [one for one in chosen if set(bucket_name(one[1]).split(",")) == asked]
    if not found:
        there = "; ".join(dict.fromkeys(bucket_name(sizes) for _, sizes, _ in chosen))
        raise NotPublished(f"BUCKET {bucket!r}: {version.name} has {there}")
    return found


def _show(found: Sequence[Explanation]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    for one in found:
        hits = sum(each.state == "hit" for each in one.executables)
        machine = f"{one.platform} machines of the kind {one.fingerprint}"
        console.print(
            f"{one.model}/{one.version} on {machine}: {hits} of {len(one.executables)} executables are there",
            markup=False,
        )
        if not one.published:
            console.print("  it is not published for them: an instance loads nothing", markup=False)
        for alike in _grouped(one.executables):
            _show_alike(console, alike)


def _grouped(executables: Iterable[Explained]) -> list[list[Explained]]:
    """Those of which the same is to be said, together: what a machine has otherwise, it has for every bucket."""
    groups: dict[object, list[Explained]] = {}
    for one in executables:
        changes = one.nearest.differences if one.nearest else None
        groups.setdefault((one.state, one.reason, one.listed_fault, changes), []).append(one)
    return list(groups.values())


def _show_alike(console: Console, alike: Sequence[Explained]) -> None:
    first = alike[0]
    hits = Counter(one.method for one in alike) if first.state == "hit" and len(alike) > 1 else {}
    names = [f"{method} ({count})" for method, count in hits.items()] or [one.name for one in alike]
    console.print(printable(f"  {first.state}: {'; '.join(names)}"), markup=False)
    if first.reason:
        console.print(printable(f"    {first.reason}"), markup=False)
    if first.listed_key != first.key and first.listed_key:
        worth = f"which cannot be loaded ({first.listed_fault})" if first.listed_fault else "which instances load"
        console.print(printable(f"    the target lists {_short(first.listed_key)} for it, {worth}"), markup=False)
    if first.nearest is None:
        if first.state in {"missing", "failed"}:
            console.print("    there is nothing to compare it with", markup=False)
        return
    listed_by = "; ".join(f"{version} on {digest}" for version, digest in first.nearest.listed_by)
    of = f" of {listed_by}" if listed_by else ", which no target of the model lists"
    beside = "" if len(alike) == 1 else ", and likewise for the others"
    console.print(f"    the nearest is {_short(first.nearest.key)}{of}{beside}:", markup=False)
    console.print(_table(first.nearest.differences))


def _table(changes: Iterable[Change]) -> Table:
    table = Table("ingredient", "wanted here", "nearest has", box=None, padding=(0, 2, 0, 4))
    for column in table.columns:
        column.overflow = "fold"
    for change in changes:
        table.add_row(*(Text(printable(text)) for text in (change.ingredient, *_sides(change))))
    return table


def _sides(change: Change) -> tuple[str, str]:
    """Both values; of long lists what only one of the two has."""
    listed = change.only_wanted or change.only_found
    if listed and max(len(change.wanted), len(change.found)) > _LONG_CHARACTERS and change.wanted and change.found:
        only_wanted = " ".join(f"+{word}" for word in change.only_wanted)
        return only_wanted, " ".join(f"-{word}" for word in change.only_found)
    return change.wanted or "(none)", change.found or "(none)"


def _short(key: str) -> str:
    return key[:_KEY_DIGITS]
