"""How much memory this process has, by the kernel's account, and giving back what it does not use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What of its memory is there, files that it maps included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


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
