"""Copies of objects in a local folder that several processes share, up to a size; those used last go last.

Under a copy's name lies the whole copy or nothing. One that was given out as a file is locked (a shared `flock`) as
long as its giver lives, and who makes room takes only what nobody has locked; the kernel unlocks what a killed process
held. A copy in the making is locked, too, so that of all processes that want it one downloads.

When a copy was last used is its access time, set here: its modification time stays what it was, since by that others
notice that a file was changed.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import threading
import time
import weakref
from collections.abc import Buffer, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cache.descriptors import allow_descriptors

_UNFINISHED = ".unfinished-"
_ABSENT = (FileNotFoundError, NotADirectoryError)
ROOM = 16  # one part in so many of a full folder is freed at once; half of it written, it is time to look again
LOOK_S = 0.01  # how often a lock is tried that somebody else has
HOLD_S_MAX = 1.0  # who removes or finishes a copy has it locked for a moment
STANDSTILL_S_MAX = 30.0  # for how long the copy that another process makes may not grow


class Unkept(Exception):
    """The folder does not take a copy, or does not give it; the message says which folder, and why."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(f"{folder}: {error.strerror or error}")
        self.full = error.errno in {errno.ENOSPC, errno.EDQUOT}


class LocalCopies:
    """The copies in one folder.

    Args:
        folder: It is made with the first copy.
        bytes_max: All copies together, with those in the making. What processes write at the same time can exceed it,
            each by no more than a 32nd of it or one copy; so can copies that are held.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}  # by path: the descriptor that locks a copy
        self._bytes = bytes_max  # what lies there, as far as known: before the first look, take it to be full
        self._unseen_bytes = 0  # written since the last look
        weakref.finalize(self, _close_all, self._held)

    def __repr__(self) -> str:
        return f"LocalCopies({str(self.folder)!r})"

    def read(self, path: str, bytes_max: int | None = None) -> bytes | None:
        """A copy's content, or the start of it; None if there is none that can be read."""
        try:
            with (self.folder / path).open("rb") as stream:
                _touch(stream.fileno())
                return stream.read(-1 if bytes_max is None else bytes_max)
        except OSError:
            return None

    def hold(self, path: str) -> Path | None:
        """The file of a copy, which nobody removes to make room while this object lives; None if there is none.

        Raises:
            Unkept: It is there and cannot be held.
        """
        file = self.folder / path
        with self._lock, self._telling():
            held = self._held.get(path)
            if held is None or not _is_at(held, file):
                try:
                    held = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                except _ABSENT:
                    return None
                if not self._take(path, file, held):
                    return None
            _touch(held)
            return file

    def keep(self, path: str, write: Callable[[BinaryIO], None], *, hold: bool = False) -> None:
        """Make a copy; nothing happens if there is one, or another process makes it meanwhile.

        Args:
            path: Of the object.
            write: Writes the content to a stream that can seek. What it raises is passed on, and there is no copy. It
                may be called twice.
            hold: Whether the new copy is held from its first moment.

        Raises:
            Unkept: The folder does not take it, or another process gets no further with it.
        """
        try:
            self._keep(path, write, hold=hold)
        except Unkept as error:
            if not error.full:
                raise
            self._make_room(self.folder / path, half=True)  # of other things: our own limit does not help
            self._keep(path, write, hold=hold)

    def drop(self, path: str) -> None:
        """Remove a copy, from those who hold it, too: what they have open stays open."""
        with self._lock:
            self._release(path)
        with suppress(OSError):
            (self.folder / path).unlink()

    def _keep(self, path: str, write: Callable[[BinaryIO], None], *, hold: bool) -> None:
        file = self.folder / path
        unfinished = file.with_name(_UNFINISHED + file.name)
        with self._telling():
            file.parent.mkdir(parents=True, exist_ok=True)
            with self._turn(file, unfinished) as stream:
                if stream is None:
                    return
                write(stream)
                os.fsync(stream.fileno())
                size_bytes = os.fstat(stream.fileno()).st_size
                unfinished.replace(file)
                if hold:
                    with self._lock:
                        self._take(path, file, os.dup(stream.fileno()))
        with self._lock:
            self._bytes += size_bytes
            self._unseen_bytes += size_bytes
            look = self._bytes > self.bytes_max or self._unseen_bytes > self.bytes_max // (2 * ROOM)
        if look:
            self._make_room(file)

    @contextmanager
    def _turn(self, file: Path, unfinished: Path) -> Iterator[BinaryIO | None]:
        """A stream to the unfinished file, which is ours alone and goes at an error; None if there is a copy by now."""
        while not file.is_file():
            descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with _Copy(descriptor, self.folder) as stream:
                if not _locked(descriptor, fcntl.LOCK_EX, unfinished, STANDSTILL_S_MAX):
                    raise TimeoutError(errno.ETIMEDOUT, f"another process does not finish {unfinished.name}")
                if not _is_at(descriptor, unfinished):
                    continue  # who had locked it finished it or gave it up
                try:
                    stream.truncate(0)  # what a killed process left
                    yield stream
                except BaseException:
                    unfinished.unlink(missing_ok=True)
                    raise
                return
        yield None

    def _make_room(self, spared: Path, *, half: bool = False) -> None:
        """Remove what was not used for the longest, until there is room for more, or half of it all is gone."""
        found = sorted(self._found())
        there = sum(size_bytes for _, size_bytes, _ in found)
        most = there // 2 if half else self.bytes_max - self.bytes_max // ROOM if there > self.bytes_max else there
        for _, size_bytes, file in found:
            if there <= most:
                break
            if file != spared and _removed(file):
                there -= size_bytes
        with self._lock:
            self._bytes, self._unseen_bytes = there, 0

    def _found(self) -> Iterator[tuple[int, int, Path]]:
        """(last use, size, file) of every copy, also in the making; what nobody goes on making is removed."""
        for parent, _, names in self.folder.walk():
            for file in (parent / name for name in names):
                with suppress(OSError):
                    status = file.stat()
                    if not (file.name.startswith(_UNFINISHED) and _removed(file)):
                        yield status.st_atime_ns, status.st_size, file

    def _take(self, path: str, file: Path, descriptor: int) -> bool:
        """Hold a copy by this descriptor, unless somebody removed it meanwhile."""
        if not _locked(descriptor, fcntl.LOCK_SH, file, HOLD_S_MAX) or not _is_at(descriptor, file):
            os.close(descriptor)
            return False
        self._release(path)
        self._held[path] = descriptor
        allow_descriptors(len(self._held))
        return True

    def _release(self, path: str) -> None:
        held = self._held.pop(path, None)
        if held is not None:
            os.close(held)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unkept(self.folder, error) from error


class _Copy(io.FileIO):
    """A copy in the making. Its errors say that they are the folder's, not of where the content comes from."""

    def __init__(self, descriptor: int, folder: Path) -> None:
        super().__init__(descriptor, "r+b")
        self._folder = folder

    def write(self, data: Buffer, /) -> int:
        """All of it."""
        rest = memoryview(data)
        size_bytes = rest.nbytes
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            raise Unkept(self._folder, error) from error
        return size_bytes


def _locked(descriptor: int, how: int, file: Path, standstill_s_max: float) -> bool:
    """Lock a file, or wait until it has another name.

    It is waited for as long as the file grows, and not much longer: False after that.
    """
    size_bytes, until_s = -1, 0.0
    while _is_at(descriptor, file):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if (found := os.fstat(descriptor).st_size) != size_bytes:
                size_bytes, until_s = found, time.monotonic() + standstill_s_max
            elif time.monotonic() > until_s:
                return False
            time.sleep(LOOK_S)
        else:
            return True
    return True


def _removed(file: Path) -> bool:
    """Remove a file unless somebody has locked it; whether it was removed."""
    with suppress(OSError), file.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(stream.fileno(), file):
            file.unlink()
            return True
    return False


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether an open file, and no folder, still has this name."""
    try:
        found = file.stat()
    except _ABSENT:
        return False
    return stat.S_ISREG(found.st_mode) and os.path.samestat(os.fstat(descriptor), found)


def _touch(descriptor: int) -> None:
    with suppress(OSError):  # another user's, or nobody may write here: then it looks as if it was not used
        os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))


def _close_all(held: dict[str, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)
    held.clear()
