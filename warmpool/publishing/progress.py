"""How a long command shows where it is: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from warmpool.errors import printable

if TYPE_CHECKING:
    import rich.progress


class Progress(Protocol):
    """Told about by threads; every method may be called from any of them."""

    def say(self, text: str) -> None:
        """Something worth a line of its own."""

    def expect(self, steps: int) -> None:
        """There are so many steps more to go."""

    def step(self, text: str) -> None:
        """One step is done."""


class Lines:
    """A line for everything that is said, steps with their number."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0

    def say(self, text: str) -> None:
        with self._lock:
            self._write(printable(text))

    def expect(self, steps: int) -> None:
        with self._lock:
            self._total += steps

    def step(self, text: str) -> None:
        with self._lock:
            self._done += 1
            self._write(printable(f"[{self._done}/{self._total}] {text}"))

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class Bar:
    """A bar, with the last step beside it and what is said above it."""

    def __init__(self, bar: rich.progress.Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, text="")

    def say(self, text: str) -> None:
        self._bar.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def expect(self, steps: int) -> None:
        total = self._bar.tasks[0].total or 0
        self._bar.update(self._task, total=total + steps)

    def step(self, text: str) -> None:
        self._bar.update(self._task, advance=1, text=printable(text))


@contextmanager
def shown_on(stream: TextIO) -> Iterator[Progress]:
    """Progress on a stream, in the form that suits it."""
    if not stream.isatty():
        yield Lines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    text = TextColumn("{task.fields[text]}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), text)
    with RichProgress(*columns, console=Console(file=stream), transient=True) as bar:
        yield Bar(bar)
