"""`warmpool rollout rollback MODEL`: the canary gets nothing any more; without one, what was stable before is again.

A canary is taken back even by who holds no key that signs: instances follow the record of the rollout at once.
"""

from __future__ import annotations

import argparse

from cache.errors import Untrusted
from warmpool.cache_commands.opened import opened
from warmpool.rollout.changes import RolloutRefused, rolled_back
from warmpool.rollout.serving_change import read_serving
from warmpool.rollout_commands.telling import add_model_arguments, change, note, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Go back."""
    store = opened(args)
    serving, _ = read_serving(store, args.model)
    noted = note(store, args, serving, "rollback") if serving.canary else None
    try:
        store.require_signer("what is served")
    except Untrusted as error:
        if noted is None:
            raise
        store.audit.record(
            "rollback", model=args.model, version=serving.stable, before=serving.canary, reason=args.reason
        )
        line = f"{args.model}: instances give {serving.canary} nothing any more; serving.json still names it ({error})"
        return tell(args, serving, line)
    try:
        before, after = change(store, args, "rollback", rolled_back, serving)
    except RolloutRefused:
        now, _ = read_serving(store, args.model)
        if not serving.canary or now.stable != serving.stable or now.canary:
            raise
        return tell(args, now, f"{args.model}: {serving.canary} was taken back already, {now.stable} is stable")
    return tell(args, after, f"{args.model}: {before.canary or before.stable} was taken back, {after.stable} is stable")
