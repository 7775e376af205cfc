"""How `warmpool status` shows a compile service: in a line or two, and in full where it is asked for."""

from __future__ import annotations

import time

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Queued(msgspec.Struct, frozen=True):
    """One that waits: what it will gain, in microseconds over all traffic, and when it is predicted to be warm."""

    title: str
    version: str
    gain_us: float
    ready_in_s: float | None


class UnderWay(msgspec.Struct, frozen=True):
    """An executable that is being made, for so many seconds."""

    title: str
    version: str
    for_s: float


class Outcome(msgspec.Struct, frozen=True):
    """What became of one; `when_s` since the epoch."""

    title: str
    version: str
    outcome: str
    seconds: float
    when_s: float
    reason: str


class Compiling(msgspec.Struct, frozen=True):
    """The service, as far as it is shown; while it starts it has no more than a state."""

    state: str
    reason: str = ""
    running: list[UnderWay] = []
    waiting: int = 0
    queue: list[Queued] = []
    over_in_s: float = 0.0
    history: list[Outcome] = []
    failures: dict[str, str] = {}


def show_compiling(console: Console, found: Compiling) -> None:
    """Draw what it does, and what it could not do."""
    if found.running or found.waiting:
        now = ", ".join(one.title for one in found.running) or "nothing yet"
        more = f"; {found.waiting} more wait, all in about {found.over_in_s:.0f} s"
        console.print(escape(f"  compiling: {now}{more}"), style="yellow", soft_wrap=True)
    for title, reason in found.failures.items():
        console.print(escape(f"  cannot be made: {title}: {reason}"), style="yellow", soft_wrap=True)


def show_compiling_in_full(console: Console, found: Compiling) -> None:
    """Draw what runs, what waits in which order, and what became of the last ones."""
    console.print(f"compiling: {found.state}" + (escape(f", {found.reason}") if found.reason else ""))
    table = Table("executable", "version", "is", "seconds", "", box=None)
    for outcome in found.history:
        ago = f"{max(0.0, time.time() - outcome.when_s):.0f} s ago"
        row = (outcome.title, outcome.version, outcome.outcome, f"{outcome.seconds:.2f}", outcome.reason or ago)
        table.add_row(*map(escape, row))
    for one in found.running:
        table.add_row(escape(one.title), escape(one.version), "running", f"{one.for_s:.2f}", "")
    for waits in found.queue:
        ready = "-" if waits.ready_in_s is None else f"in {waits.ready_in_s:.0f}"
        gain = f"gains {waits.gain_us / 1e3:.3g} ms"
        table.add_row(escape(waits.title), escape(waits.version), "waiting", ready, gain)
    console.print(table)
    if found.waiting > len(found.queue):
        console.print(f"and {found.waiting - len(found.queue)} more")
