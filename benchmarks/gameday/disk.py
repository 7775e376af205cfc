"""A disk that can be filled, under what an instance keeps: a small file system of its own, or a limit for its files.

Whoever may mount gets the former, as root of a machine does: in a mount namespace that this process and its children
have for themselves, so that the file system is gone with the last of them, however they end. In a container without
that right the processes get a limit for the size of their files instead (RLIMIT_FSIZE, 0 bytes): what they write then
fails, too, though they are told EFBIG and not ENOSPC.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

SIZE_BYTES = 64 << 20
MOUNT_S_MAX = 10.0
_PIECE = bytes(1 << 16)
_PASSES_MAX = 20


class Disk(Protocol):
    """Where an instance keeps things."""

    def fill(self) -> None:
        """From now on nothing can be written."""

    def free(self) -> None:
        """From now on something can."""


class MountedDisk:
    """A file system in memory, which a file fills.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(_PIECE)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class LimitedFiles:
    """A limit for the files of processes, and of those that they start meanwhile.

    Args:
        pids: All processes that write there now.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids

    def fill(self) -> None:
        self._limit(lambda _: 0)

    def free(self) -> None:
        self._limit(lambda hard: hard)

    def _limit(self, soft: Callable[[int], int]) -> None:
        """Set it for all; again and again while there are more, which may have been forked before it was set."""
        done: set[int] = set()
        for _ in range(_PASSES_MAX):
            new = set(self._pids()) - done
            if not new:
                return
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft(hard), hard))
            done |= new


@contextlib.contextmanager
def small_disk(folder: Path, pids: Callable[[], Iterable[int]], size_bytes: int = SIZE_BYTES) -> Iterator[Disk]:
    """A disk at a folder, which is made.

    Args:
        folder: Where it is, for this thread, and for threads and processes that it starts from now on.
        pids: Of the processes that will write there.
        size_bytes: How much it holds.
    """
    folder.mkdir(parents=True)
    if not _mounted(folder, size_bytes):
        limited = LimitedFiles(pids)
        try:
            yield limited
        finally:
            limited.free()
        return
    try:
        yield MountedDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=MOUNT_S_MAX)  # noqa: S607


def _mounted(folder: Path, size_bytes: int) -> bool:
    tmpfs = ("-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "gameday", str(folder))
    try:
        os.unshare(os.CLONE_NEWNS)
        return _mount("--make-rprivate", "/") and _mount(*tmpfs)
    except OSError:  # without the right, or without the command
        return False


def _mount(*arguments: str) -> bool:
    done = subprocess.run(["mount", *arguments], check=False, timeout=MOUNT_S_MAX, stderr=subprocess.DEVNULL)  # noqa: S607
    return done.returncode == 0
