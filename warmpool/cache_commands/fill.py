"""`warmpool cache fill`: compile and prove here what published versions lack on this kind of machine.

Everything comes out of the store, no author's code runs. It is what makes a store ready for a new jaxlib or another
kind of machine before any instance on it gets traffic, and what makes again what was set aside.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from itertools import product

import msgspec

from cache.errors import CacheError
from cache.signed_store import SignedStore
from cache.wanted import wanted
from warmpool.cache_commands.opened import opened
from warmpool.errors import PublishError, printable
from warmpool.publishing.from_store import make_from_store
from warmpool.publishing.machines import CHOICES, Children, Limits, Machine
from warmpool.publishing.made import How
from warmpool.publishing.progress import Progress, shown_on
from warmpool.settings import add_store_flags
from warmpool.survey import Published, Survey, survey


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What was done for one version on one kind of machine; `problem` says why it was not, "" if it was."""

    model: str
    version: str
    platform: str
    fingerprint: str
    executables: int = 0
    compiled: int = 0
    problem: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL[@VERSION]",
        help="which; by default every stable version, and those of which executables are asked for",
    )
    parser.add_argument("--platform", choices=CHOICES, default="auto", help="what to compile for beside the CPU")
    parser.add_argument("--retry-failed", action="store_true", help="compile again what failed to compile before")


def main(args: argparse.Namespace) -> int:
    """Fill; 0 when nothing is missing any more, 1 if something could not be made."""
    store = opened(args)
    store.require_signer()
    found = survey(store)
    versions = _chosen(found, args.models, set(wanted(store)))
    # A target that cannot be read is made anew.
    problems = {path: problem for path, problem in found.problems.items() if "/targets/" not in path}
    start_s = time.monotonic()
    filled: list[Filled] = []
    with shown_on(sys.stderr) as progress, ExitStack() as stack:
        children = stack.enter_context(Children(Limits()))
        machines = children.machines(args.platform) if versions else ()
        for version, machine in product(versions, machines):
            if not children.alive:  # a failure ends them, with whatever they were doing
                children = stack.enter_context(Children(Limits()))
            how = How(retry_failed=args.retry_failed, primary=machines[0])
            filled.append(_fill(store, version, machine, children, progress, how))
    seconds = round(time.monotonic() - start_s, 3)
    if args.json:
        result = {"filled": filled, "problems": problems, "wanted": wanted(store), "seconds": seconds}
        print(msgspec.json.encode(result).decode())
    else:
        for one in filled:
            done = one.problem or f"{one.executables} executables, {one.compiled} of them compiled now"
            print(printable(f"{one.model}/{one.version} for {one.platform} ({one.fingerprint}): {done}"))
        for path, problem in problems.items():
            print(printable(f"cannot be read: {path}: {problem}"))
        if not (filled or problems):
            print("no version is served")
    return 1 if problems or any(one.problem for one in filled) else 0


def _chosen(found: Survey, names: list[str], asked: set[str]) -> list[Published]:
    """Those named; by default what is served, and whatever an executable is asked for of."""
    if names:
        return [found.named(name) for name in names]
    chosen = [version for version in found.versions if version.stable or asked & version.keys()]
    return sorted(chosen, key=lambda version: not version.stable)


def _fill(
    store: SignedStore,
    version: Published,
    machine: Machine,
    children: Children,
    progress: Progress,
    how: How,
) -> Filled:
    manifest = version.manifest
    digest = machine.fingerprint.digest
    filled = Filled(model=manifest.model, version=manifest.version, platform=machine.platform, fingerprint=digest)
    try:
        made = make_from_store(
            store,
            manifest,
            machine,
            children,
            progress,
            why="filled out of the store",
            retry_failed=how.retry_failed,
            primary=how.primary,
        )
    except (CacheError, PublishError) as error:
        return msgspec.structs.replace(filled, problem=str(error))
    filled = msgspec.structs.replace(filled, executables=len(made.target.executables), compiled=made.compiled)
    return msgspec.structs.replace(filled, problem="; ".join(made.failed.values()))
