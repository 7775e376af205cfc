"""Which processors a process may use: one that stands for a lane's own device, and those that are left.

Where the device is the processor, a request's arithmetic and its HTTP take turns on it, and what one costs the other
loses. With an accelerator they do not. A processor of its own for the lane, and for the bare process that it is
compared with, shows that without one: of a lane that is never kept waiting, the front takes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path


def device_and_rest() -> tuple[set[int], set[int]]:
    """The first processor that this process may use, and the others: none on a machine with one."""
    first, *rest = sorted(os.sched_getaffinity(0))
    return {first}, set(rest)


def confine(pid: int, processors: Collection[int]) -> None:
    """Let every thread that a process has now run on these only; those that it starts later do, too."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), processors)
