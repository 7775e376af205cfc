"""`warmpool rollout COMMAND`: which there are."""

from __future__ import annotations

from cache.errors import CacheError
from warmpool.command_group import Group
from warmpool.errors import WarmpoolError

COMMANDS = {
    "start": ("warmpool.rollout_commands.start", "give a published version a share of the requests, and watch it"),
    "status": ("warmpool.rollout_commands.status", "show what is served, and how rollouts went"),
    "promote": ("warmpool.rollout_commands.promote", "make the canary stable now"),
    "rollback": ("warmpool.rollout_commands.rollback", "take the canary back, or go back to what was stable before"),
    "retire": ("warmpool.rollout_commands.retire", "keep what was stable before warm no longer"),
}


class RolloutCommandFailed(WarmpoolError):
    """What was asked for could not be done; the message says why."""


GROUP = Group(COMMANDS, RolloutCommandFailed, (CacheError, WarmpoolError, ValueError))
add_arguments, main = GROUP.add_arguments, GROUP.main
