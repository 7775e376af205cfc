"""The processes of a stack, found by the mark in their environment, and ended.

A pid may belong to another process by the time it is used. So a process is held first (a pidfd stays with it, whatever
becomes of its number), then looked at, and signalled by what is held: nothing that has not the mark is ever touched.
A lane or a worker has the mark too, from the process that it descends from.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "LOCAL_STACK_MARK"
POLL_S = 0.05


def marked(mark: str) -> dict[int, str]:
    """What runs of a stack: the command of each process by its pid."""
    found = {}
    for pid in _pids():
        if _has(pid, mark):
            found[pid] = _command(pid)
    return found


def send(mark: str, number: signal.Signals) -> set[int]:
    """Send a signal to all processes of a stack, and tell which they were."""
    sent = set()
    for pid in _pids():
        with _held(pid) as handle:
            if handle is not None and _has(pid, mark):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
                    sent.add(pid)
    return sent


def wait_gone(mark: str, wait_s_max: float) -> bool:
    """Wait until nothing of a stack runs; whether that came about in time."""
    deadline_s = time.monotonic() + wait_s_max
    while marked(mark):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def _pids() -> list[int]:
    own = os.getpid()
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and int(entry.name) != own]


@contextmanager
def _held(pid: int) -> Iterator[int | None]:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _has(pid: int, mark: str) -> bool:
    """Whether a process has the mark; one that has ended and waits to be reaped has no environment any more."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{VARIABLE}={mark}".encode() in environment.split(b"\0")


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""
