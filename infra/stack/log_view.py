"""One view of all logs of a stack: each line behind the name of its process, as it comes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.1
TAIL_BYTES_MAX = 1 << 16
LINE_BYTES_MAX = 1 << 16
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 95)
_NAME_COLUMNS = 12


class Line(NamedTuple):
    """A line that a process wrote, without its newline."""

    process: str
    text: str


class LogFile:
    """A log from some point on, also when it is replaced by a new one, as supervisord does with a large one."""

    def __init__(self, process: str, path: Path, lines_max: int) -> None:
        self.process = process
        self._path = path
        self._file = path.open("rb")
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(max(0, size - TAIL_BYTES_MAX))
        self._cut = b""
        tail = self._file.read(TAIL_BYTES_MAX)
        whole, _, self._cut = tail.rpartition(b"\n")
        self._first = whole.split(b"\n")[-lines_max:] if lines_max and whole else []

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def read(self) -> Iterator[Line]:
        """The lines that are complete and were not read yet; of one that is longer than LINE_BYTES_MAX, its parts."""
        for raw in self._first:
            yield self._line(raw)
        self._first = []
        while True:
            new = self._file.read(LINE_BYTES_MAX)
            if not new and not self._replaced():
                return
            *whole, self._cut = (self._cut + new).split(b"\n")
            if len(self._cut) > LINE_BYTES_MAX:
                whole, self._cut = [*whole, self._cut], b""
            for raw in whole:
                yield self._line(raw)

    def _replaced(self) -> bool:
        """Go on with the file that has our name now, if it is another one or was cut."""
        try:
            now, ours = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return False
        if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino):
            self._file.close()
            self._file = self._path.open("rb")
            return True
        if now.st_size < self._file.tell():
            self._file.seek(0)
            return True
        return False

    def _line(self, raw: bytes) -> Line:
        text = raw.decode(errors="replace")
        # What a process writes must not move a terminal's cursor.
        return Line(self.process, "".join(one if one.isprintable() or one == "\t" else "?" for one in text))


class LogView:
    """The logs of some processes; those that have none yet come in once they do.

    Args:
        paths: Where each process writes.
        lines_max: How many old lines of each come first.
    """

    def __init__(self, paths: Mapping[str, Path], lines_max: int) -> None:
        self._paths = dict(paths)
        self._lines_max = lines_max
        self._files: dict[str, LogFile] = {}

    def read(self) -> Iterator[Line]:
        """What is new."""
        for process, path in self._paths.items():
            if process not in self._files and path.exists():
                self._files[process] = LogFile(process, path, self._lines_max)
            if process in self._files:
                yield from self._files[process].read()

    def follow(self, ended: Callable[[], bool]) -> Iterator[Line]:
        """What is new, and what comes, until `ended`."""
        while True:
            over = ended()
            yield from self.read()
            if over:
                return
            time.sleep(POLL_S)

    def close(self) -> None:
        """Let go of all files."""
        for file in self._files.values():
            file.close()


def shown(line: Line, place: int, *, colours: bool) -> str:
    """A line as it is printed; `place` is that of its process among all, and chooses the colour."""
    name = f"{line.process:<{_NAME_COLUMNS}} |"
    return f"\x1b[{_COLOURS[place % len(_COLOURS)]}m{name}\x1b[0m {line.text}" if colours else f"{name} {line.text}"


def coloured() -> bool:
    """Whether standard output shows colours: a terminal, and nobody said no (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
