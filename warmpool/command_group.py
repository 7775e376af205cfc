"""Commands of one subject, as `warmpool cache COMMAND`: only the called one is imported."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from warmpool.errors import WarmpoolError

Commands = Mapping[str, tuple[str, str]]
"""By name: the module, which has `add_arguments(parser)` and `main(args)`, and what it does, in a line."""


class _Command(argparse.ArgumentParser):
    """The parser of one command, which learns its arguments once that command is called."""

    module = ""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.add_argument("--json", action="store_true", help="print the result as JSON")
        importlib.import_module(self.module).add_arguments(self)
        return super().parse_known_args(args, namespace)


class Group:
    """The commands of one subject.

    Args:
        commands: Which there are.
        failed: Raised, with a command's name and the reason, for what it says is wrong.
        wrong: Errors by which it says so, ValueError for a setting or an argument that is not allowed; others are ours.
    """

    def __init__(self, commands: Commands, failed: type[WarmpoolError], wrong: tuple[type[Exception], ...]) -> None:
        self._commands = commands
        self._failed = failed
        self._wrong = wrong

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Let the parser have these commands."""
        group = parser.add_subparsers(dest="command_of_group", required=True, metavar="COMMAND", parser_class=_Command)
        for name, (module, summary) in self._commands.items():
            command = group.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
            command.module = module

    def main(self, args: argparse.Namespace) -> int:
        """Run the command that was called; its status."""
        name = args.command_of_group
        module = importlib.import_module(self._commands[name][0])
        try:
            return int(module.main(args))
        except self._wrong as error:
            raise self._failed(f"{name}: {error}") from error
