"""Commands of one subject, as `warmpool cache COMMAND`: only the called one is imported."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

Commands = Mapping[str, tuple[str, str]]
"""By name: the module, which has `add_arguments(parser)` and `main(args)`, and what it does, in a line."""


class _Command(argparse.ArgumentParser):
    """The parser of one command, which learns its arguments once that command is called."""

    module = ""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.add_argument("--json", action="store_true", help="print the result as JSON")
        importlib.import_module(self.module).add_arguments(self)
        return super().parse_known_args(args, namespace)


def declare(parser: argparse.ArgumentParser, commands: Commands) -> None:
    """Let the parser have these commands."""
    group = parser.add_subparsers(dest="command_of_group", required=True, metavar="COMMAND", parser_class=_Command)
    for name, (module, summary) in commands.items():
        command = group.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.module = module


def called(args: argparse.Namespace, commands: Commands) -> tuple[str, Any]:
    """The command that was called: its name and its module."""
    name = args.command_of_group
    return name, importlib.import_module(commands[name][0])
