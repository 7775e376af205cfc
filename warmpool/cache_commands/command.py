"""`warmpool cache COMMAND`: which there are. Only the called one is imported."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from cache.errors import CacheError
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


class _Command(argparse.ArgumentParser):
    """The parser of one command, which learns its arguments once that command is called."""

    module = ""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.add_argument("--json", action="store_true", help="print the result as JSON")
        importlib.import_module(self.module).add_arguments(self)
        return super().parse_known_args(args, namespace)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    commands = parser.add_subparsers(dest="cache_command", required=True, metavar="COMMAND", parser_class=_Command)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.module = module


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    module = importlib.import_module(COMMANDS[args.cache_command][0])
    try:
        return int(module.main(args))
    except (CacheError, ValueError) as error:  # ValueError: a setting or an argument that is not allowed
        raise CacheCommandFailed(f"{args.cache_command}: {error}") from error
