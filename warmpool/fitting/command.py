"""`warmpool buckets COMMAND`: which there are."""

from __future__ import annotations

import argparse

from cache.errors import CacheError
from warmpool.command_group import called, declare
from warmpool.errors import WarmpoolError

COMMANDS = {
    "fit": ("warmpool.fitting.fit_command", "compute the buckets that fit what callers send, and publish them"),
    "reset": ("warmpool.fitting.reset_command", "go back to the buckets that were declared"),
}


class BucketsCommandFailed(WarmpoolError):
    """What was asked for could not be done; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    declare(parser, COMMANDS)


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    name, module = called(args, COMMANDS)
    try:
        return int(module.main(args))
    except (CacheError, ValueError, OSError) as error:  # ValueError: a setting or an argument that is not allowed
        raise BucketsCommandFailed(f"{name}: {error}") from error
