"""`warmpool buckets COMMAND`: which there are."""

from __future__ import annotations

from cache.errors import CacheError
from warmpool.command_group import Group
from warmpool.errors import WarmpoolError

COMMANDS = {
    "fit": ("warmpool.fitting.fit_command", "compute the buckets that fit what callers send, and publish them"),
    "reset": ("warmpool.fitting.reset_command", "go back to the buckets that were declared"),
}


class BucketsCommandFailed(WarmpoolError):
    """What was asked for could not be done; the message says why."""


GROUP = Group(COMMANDS, BucketsCommandFailed, (CacheError, ValueError, OSError))
add_arguments, main = GROUP.add_arguments, GROUP.main
