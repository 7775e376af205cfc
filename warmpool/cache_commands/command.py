"""`warmpool cache COMMAND`: which there are."""

from __future__ import annotations

from cache.errors import CacheError
from warmpool.command_group import Group
from warmpool.errors import WarmpoolError

COMMANDS = {
    "ls": ("warmpool.cache_commands.ls", "list what a store holds"),
    "explain": ("warmpool.cache_commands.explain", "say what is missing on this machine, and which ingredient differs"),
    "verify": ("warmpool.cache_commands.verify", "read everything, set aside what is damaged, ask for it again"),
    "restore": ("warmpool.cache_commands.restore", "put back what was set aside by mistake"),
    "fill": ("warmpool.cache_commands.fill", "compile what published versions lack on this kind of machine"),
    "gc": ("warmpool.cache_commands.gc", "remove what nothing needs"),
    "distrust": ("warmpool.cache_commands.distrust", "make nobody trust a key any more"),
    "sync": ("warmpool.cache_commands.sync", "share JAX's own compilation cache, and mend it"),
    "keygen": (
        "warmpool.cache_commands.keygen",
        "make a key pair that signs what is published, or a key that encrypts it",
    ),
}


class CacheCommandFailed(WarmpoolError):
    """What was asked for could not be done; the message says why."""


GROUP = Group(COMMANDS, CacheCommandFailed, (CacheError, ValueError))
add_arguments, main = GROUP.add_arguments, GROUP.main
