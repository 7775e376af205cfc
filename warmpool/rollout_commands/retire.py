"""`warmpool rollout retire MODEL`: what was stable before is kept warm no longer."""

from __future__ import annotations

import argparse

from warmpool.cache_commands.opened import opened
from warmpool.rollout.changes import retired
from warmpool.rollout_commands.telling import add_model_arguments, change, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Let it go."""
    store = opened(args)
    store.require_signer("what is served")
    before, after = change(store, args, "rollout", retired)
    return tell(args, after, f"{args.model}: {before.previous} is kept warm no longer")
