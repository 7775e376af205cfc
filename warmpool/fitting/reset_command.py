"""`warmpool buckets reset MODEL`: back to the plan that the model's author declared, on this kind of machine."""

from __future__ import annotations

import argparse
import sys

import msgspec

from warmpool.cache_commands.opened import opened
from warmpool.fitting.replan import replan, this_machine
from warmpool.publishing.machines import CHOICES
from warmpool.publishing.progress import shown_on
from warmpool.settings import add_store_flags
from warmpool.survey import survey


class NothingFitted(ValueError):
    """There is no fitted plan to be taken back."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL[@VERSION]", help="which; by default the version that is served")
    add_store_flags(parser)
    parser.add_argument("--method", metavar="M", help="only this method; by default all that have a fitted plan")
    parser.add_argument("--platform", choices=CHOICES, default="auto", help="which of this machine's")


def main(args: argparse.Namespace) -> int:
    """Reset. Raises NothingFitted where there is no fitted plan."""
    store = opened(args)
    store.require_signer()
    version = survey(store).named(args.model)
    machine = this_machine(args.platform)
    target = version.targets.get(machine.fingerprint.digest)
    fitted = sorted(target.plans_by_method if target else ())
    methods = [method for method in fitted if args.method in {None, method}]
    if not methods:
        there = ", ".join(fitted) or "none"
        raise NothingFitted(
            f"{version.name} has no such fitted plan on {machine.fingerprint.digest}; there are: {there}"
        )
    with shown_on(sys.stderr) as progress:
        made = replan(store, version.manifest, machine, dict.fromkeys(methods), progress)
    if args.json:
        result = {"model": version.manifest.model, "version": version.manifest.version, "methods": methods}
        print(msgspec.json.encode(result | {"compiled": made.compiled}).decode())
    else:
        print(f"{version.name}: {', '.join(methods)} as declared again, {made.compiled} executables compiled")
    return 0
