"""File descriptors: as many as the system gives a process, and numbers that are given once.

The system gives the lowest number that is free, so whoever was told a number finds another file under it once the first
is closed. Files that other processes open as /proc/<pid>/fd/<number> need numbers of which that is not true.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading

_FIRST_MAX = 1 << 16  # what a process opens for itself is below; the kernel's table grows with the highest number
_UNLIMITED = 1 << 20  # what Linux allows where nothing else is said

_lock = threading.Lock()
_next = 0


def allow_descriptors(held: int) -> int:
    """Raise this process's limit if the ones that are held take more than half of it; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if held <= soft // 2 or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def numbered_once(descriptor: int) -> int:
    """The same open file under a number that was given to nobody for as long as there are others; closes the old one.

    Raises:
        OSError: The system has none left. The old one is closed all the same.
    """
    global _next  # noqa: PLW0603  the numbers are the process's
    with _lock:
        first = min(allow_descriptors(_FIRST_MAX) // 2, _FIRST_MAX)
        try:
            number = _duplicate(descriptor, max(_next, first))
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EMFILE}:
                raise
            number = _duplicate(descriptor, first)
        finally:
            os.close(descriptor)
        _next = number + 1
        return number


def _duplicate(descriptor: int, least: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
