"""Files in memory that other processes can open and map, and nobody can change, by the name of what is in them.

Each is given out as /proc/<pid>/fd/<n>, with a number that is given once: whoever has the path of one that was
forgotten since finds nothing there, and never another file. They go away with this process, and take a file descriptor
and as much memory as their content each.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cache.descriptors import numbered_once
from cache.errors import StoreUnavailable

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MemoryFiles:
    """The files of one owner; they are gone when it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}  # descriptors, by name
        self._forgotten: Counter[str] = Counter()
        weakref.finalize(self, _close_all, self._held)

    def find(self, name: str) -> Path | None:
        """The file of this name, the same one until it is forgotten."""
        with self._lock:
            held = self._held.get(name)
        return None if held is None else _path_of(held)

    def turn(self, name: str) -> int:
        """How often it was forgotten so far."""
        with self._lock:
            return self._forgotten[name]

    def add(self, name: str, write: Callable[[BinaryIO], None], turn: int) -> Path | None:
        """The file of this name, unless another thread was faster the one that is written to a stream.

        Returns:
            None, and there is none, if it was forgotten since that turn: the content may be an old one.

        Raises:
            StoreUnavailable: The system has no such files to give. What `write` raises is passed on.
        """
        made = _in_memory(name, write)
        with self._lock:
            current = self._forgotten[name] == turn
            held = self._held.setdefault(name, made) if current else None
        if held != made:
            os.close(made)
        return None if held is None else _path_of(held)

    def forget(self, name: str) -> None:
        """There is no such file any more; who has mapped it keeps that."""
        with self._lock:
            self._forgotten[name] += 1
            held = self._held.pop(name, None)
        if held is not None:
            os.close(held)


def _in_memory(name: str, write: Callable[[BinaryIO], None]) -> int:
    """The descriptor of a sealed file in memory with what is written."""
    try:
        made = os.memfd_create("warmpool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        descriptor = numbered_once(made)
    except (AttributeError, OSError) as error:
        raise _none(name, error) from error
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            write(stream)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        _path_of(descriptor).stat()
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise _none(name, error) from error
        raise
    return descriptor


def _none(name: str, error: Exception) -> StoreUnavailable:
    reason = error.strerror if isinstance(error, OSError) else "the system has none"
    return StoreUnavailable(f"{name!r} cannot be put into a file in memory: {reason}")


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def _close_all(held: dict[str, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)
