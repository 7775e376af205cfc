"""`warmpool status`: what an instance is doing, as a table."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from warmpool import asking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `warmpool status`."""
    asking.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the status; 0 if the instance is ready, 3 if it answers and is not."""
    status = asking.ask(arguments.url, "/v1/status")
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(status)).decode())
    else:
        show(Console(highlight=False), status)
    return 0 if status["ready"] else 3


def show(console: Console, status: dict[str, Any]) -> None:
    """Draw the status."""
    ready = "[green]ready[/]" if status["ready"] else "[red]not ready[/]"
    console.print(f"warmpool {status['version']}  {status['state']}, {ready}  {status['rows_waiting']} rows waiting")
    for name, reason in status["reasons"].items():
        console.print(f"  {name or 'instance'}: {reason}", style="red")
    models = Table("model", "version", "ready", "methods", box=None)
    for name, model in status["models"].items():
        models.add_row(name, model["version"], "yes" if model["ready"] else "no", ", ".join(model["methods"]))
    console.print(models)
    lanes = Table("lane", "pid", "state", "warm", "batches", "restarts", "compiles", "memory", box=None)
    for lane in status["lanes"]:
        lanes.add_row(
            lane["name"],
            _shown(lane["pid"]),
            lane["state"],
            f"{lane['warm']}/{lane['planned']}",
            str(lane["batches"]),
            str(lane["restarts"]),
            _shown(lane["compiles"]),
            "-" if lane["resident_bytes"] is None else f"{lane['resident_bytes'] >> 20} MiB",
        )
    console.print(lanes)
    for lane in status["lanes"]:
        for title, reason in (*lane["missing"].items(), *lane["cold"].items()):
            console.print(f"  {lane['name']}: {title}: {reason}", style="yellow")


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
