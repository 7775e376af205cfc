"""`warmpool rollout promote MODEL`: the canary gets all requests, now; what was stable stays warm."""

from __future__ import annotations

import argparse

from warmpool.cache_commands.opened import opened
from warmpool.manifest import Serving
from warmpool.rollout.changes import RolloutRefused, promoted
from warmpool.rollout.serving_change import read_serving
from warmpool.rollout_commands.telling import add_model_arguments, change, note, noted_as_rolled_back, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Promote it."""
    store = opened(args)
    store.require_signer("what is served")
    serving, _ = read_serving(store, args.model)

    def changed(now: Serving, now_s: float, reason: str) -> Serving:
        if over := noted_as_rolled_back(store, args.model, now):
            raise RolloutRefused(
                f"version {now.canary!r} was rolled back ({over}): `warmpool rollout start` starts it anew"
            )
        return promoted(now, now_s, reason)

    before, after = change(store, args, "promote", changed, serving)
    note(store, args, before, "promote")
    return tell(args, after, f"{args.model}: {after.stable} is stable; {after.previous} stays warm")
