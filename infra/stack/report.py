"""How a stack is: what runs, since when, where it listens, and why what is not ready is not."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.stack import marked
from infra.stack.ascent import unready
from infra.stack.folder import Folder
from infra.stack.state import State
from infra.stack.supervisor import Process, Supervisor

COLUMNS = 110  # where the output is no terminal


@dataclass(frozen=True, slots=True)
class Row:
    """One process: its state as supervisord has it, and why it is not ready, "" if it is."""

    name: str
    state: str
    pid: int
    started_s: float
    url: str
    unready: str


@dataclass(frozen=True, slots=True)
class Report:
    """A stack. `left` are processes that run without a supervisor."""

    up: bool
    folder: str
    since_s: float
    processes: tuple[Row, ...]
    left: tuple[int, ...]

    @property
    def well(self) -> bool:
        """Whether everything runs and is ready."""
        return self.up and not any(row.unready for row in self.processes)


def report_of(folder: Folder, state: State | None) -> Report:
    """Ask the supervisor, and each process whether it is ready."""
    running = Supervisor(folder).processes() if state else None
    if state is None or running is None:
        since_s = state.since_s if state else 0.0
        return Report(False, str(folder.path), since_s, (), tuple(marked.marked(folder.mark)))
    absent = Process("UNKNOWN", 0, 0.0)
    rows = []
    for one in state.services:
        found = running.get(one.name, absent)
        rows.append(Row(one.name, found.state, found.pid, found.started_s, one.url, unready(one)))
    return Report(True, str(folder.path), state.since_s, tuple(rows), ())


def show(console: Console, report: Report) -> None:
    """Print it for a person."""
    if not report.up:
        console.print(f"no stack is up in {escape(report.folder)}; `make up` brings one up")
        if report.left:
            console.print(f"{len(report.left)} processes run on that no supervisor answers for; `make down` ends them")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("process", "state", "pid", "for", "address", ""):
        table.add_column(title, no_wrap=title != "")
    now_s = time.time()
    for row in report.processes:
        age = f"{now_s - row.started_s:.0f} s" if row.pid else ""
        ready = f"[red]not ready: {escape(row.unready)}[/]" if row.unready else "[green]ready[/]"
        table.add_row(row.name, row.state.lower(), str(row.pid or ""), age, row.url, ready)
    console.print(table)
