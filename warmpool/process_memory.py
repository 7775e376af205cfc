"""How much memory this process has, by the kernel's account; how it keeps and gives back what it does not use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Of glibc's mallopt, by the numbers in malloc.h: M_ARENA_MAX, M_MMAP_THRESHOLD (this is the most) and M_TRIM_THRESHOLD.
_ONE_HEAP = {-8: 1, -3: 32 << 20, -1: 256 << 20}


def resident_bytes() -> int:
    """What of its memory is there, files that it maps included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def own_bytes_of(pid: int | None) -> int:
    """What of a process's memory no file stands behind; 0 for one that is gone. Cheap enough for every batch."""
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def private_bytes() -> int:
    """What of it no file stands behind, after what is free was given back; 0 where the kernel does not say."""
    give_back()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def give_back() -> None:
    """Give what was freed back to the system: glibc keeps it, and fifty dropped executables were 160 MB of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none, and keep less
    if trim is not None:
        trim(0)


def use_one_heap() -> None:
    """Have all threads allocate from one heap, which keeps up to 256 MiB of what is freed; before there are threads.

    To load an executable is to allocate a great deal in small pieces and free most of it. A heap of each thread's own
    grows by a page and a system call at a time, and none of them uses what another has freed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        for parameter, value in _ONE_HEAP.items():
            mallopt(parameter, value)
