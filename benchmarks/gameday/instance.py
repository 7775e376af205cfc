"""A running instance, asked from outside, and waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.connection import ask_once, http_request
from benchmarks.status import STATUS

LOOK_EVERY_S = 0.05
LANE_S_MAX = 120.0


class Instance:
    """The instance, asked from outside."""

    def __init__(self, port: int, pid: int, log_file: Path) -> None:
        self.port = port
        self.pid = pid
        self._log_file = log_file

    @property
    def log(self) -> str:
        """What it said so far."""
        return self._log_file.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        """The document of /v1/status."""
        document: dict[str, Any] = msgspec.json.decode(ask_once(self.port, STATUS).body)
        return document

    def answers(self, path: str) -> int:
        """The HTTP status of a GET, 0 where nothing listens."""
        try:
            return ask_once(self.port, http_request("GET", path)).status
        except OSError:
            return 0

    def lane(self, name: str) -> dict[str, Any]:
        """What the status says of a lane."""
        lanes: list[dict[str, Any]] = self.status()["lanes"]
        return next(lane for lane in lanes if lane["name"] == name)

    def pids(self) -> set[int]:
        """Of its processes."""
        found, left = set[int](), [self.pid]
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(stat.parent.name))
        while left:
            found.add(pid := left.pop())
            left += children.get(pid, [])
        return found

    def lane_pid(self, name: str) -> int:
        """Of a lane; waits until it has a process."""
        return int(until(lambda: self.lane(name)["pid"], LANE_S_MAX, f"the {name} lane has a process"))


def until[T](condition: Callable[[], T], wait_s_max: float, what: str) -> T:
    """Wait for what has to be so; its first true value. Raises TimeoutError."""
    deadline_s = time.monotonic() + wait_s_max
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {wait_s_max:.0f} s in vain until {what}")
        time.sleep(LOOK_EVERY_S)
    return value


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal to what may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
