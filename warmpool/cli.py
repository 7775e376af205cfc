"""The command line: `warmpool COMMAND`, a table of them. Only the called one is imported."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from warmpool import __version__
from warmpool.errors import WarmpoolError, printable

COMMANDS = {
    "publish": ("warmpool.publishing.publish", "export, compile, prove and store a model"),
    "serve": ("warmpool.serve", "serve the models of a store"),
    "cache": ("warmpool.cache_commands.command", "keys, and care for a store"),
    "buckets": ("warmpool.fitting.command", "bucket plans that fit what callers send"),
    "rollout": ("warmpool.rollout_commands.command", "a new version beside the old one"),
    "status": ("warmpool.status_command", "show what an instance is doing"),
    "traces": ("warmpool.traces_command", "show an instance's traces, cold starts and the slowest first"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0 for success, 1 for an error that is told in one line, 2 for wrong usage, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="warmpool", description="Serverless inference for JAX.")
    parser.add_argument("--version", action="version", version=f"warmpool {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if arguments[:1] == [name]:  # only the chosen command's code is imported
            importlib.import_module(module).add_arguments(command)
    parsed = parser.parse_args(arguments)
    try:
        status = int(importlib.import_module(COMMANDS[parsed.command][0]).main(parsed))
        if sys.stdout:  # started without one, there is none
            sys.stdout.flush()
        return status
    except WarmpoolError as error:
        lines = map(printable, str(error).split("\n"))  # a compiler's own message has several
        print(f"warmpool {parsed.command}: {'\n'.join(lines)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who read our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter tells so at its end
        return 141


if __name__ == "__main__":
    sys.exit(main())
