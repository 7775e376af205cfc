"""CPU time of processes, by the kernel's account: what a request costs besides its run."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time that a process has used, in seconds, to a hundredth. Raises OSError where it is gone."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def children_cpu_s(pid: int) -> float:
    """The same of all that descend from it and live."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int(_fields(int(folder.name))[1])
            except OSError:  # it has ended meanwhile
                continue
    found, total_s = {pid}, 0.0
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
        total_s += sum(map(cpu_s, more))
    return total_s


def _fields(pid: int) -> list[str]:
    """What follows the name in /proc/PID/stat: the state first, its parent second."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
