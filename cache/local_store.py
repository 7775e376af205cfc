"""A folder as a store: write beside and rename, sync, and no lock for those who read."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cache.errors import NotStored, StoreUnavailable
from cache.store import Entry, is_path, require_path

_UNFINISHED = ".unfinished-"
_LOCK = ".lock"  # held by who compares and then writes; the kernel lets go of it for a process that was killed
COMPARE_S_MAX = 10.0  # for so long the lock is waited for
_LOOK_S = 0.002
UNFINISHED_S_MAX = 24 * 3600.0  # a put that wrote nothing for that long was killed
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalStore:
    """A folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        file = self._file(path)
        with _reading(path), file.open("rb") as stream:
            return stream.read(-1 if bytes_max is None else bytes_max)

    def read_into(self, path: str, stream: BinaryIO) -> None:
        """Write the object's content to a stream, without holding it in memory; NotStored if there is none."""
        file = self._file(path)
        with _reading(path), file.open("rb") as content:
            shutil.copyfileobj(content, stream, 1 << 20)

    def put(self, path: str, data: bytes) -> None:
        with self._writing(path) as stream:
            stream.write(data)

    def put_file(self, path: str, source: Path) -> None:
        with source.open("rb") as content, self._writing(path) as stream:
            shutil.copyfileobj(content, stream, 1 << 20)

    def delete(self, path: str) -> None:
        file = self._file(path)
        with _reaching(path), suppress(*_ABSENT):
            file.unlink()

    def names(self, folder: str) -> list[str]:
        below = self._file(folder)
        with _reaching(folder):
            try:
                return sorted(found.name for found in below.iterdir() if is_path(found.name))
            except _ABSENT:
                return []

    def entries(self, folder: str) -> Iterator[Entry]:
        top = self._file(folder) if folder else self.root
        with _reaching(folder or "."):
            for parent, _, names in top.walk(on_error=_raise_unless_absent):
                for file in (parent / name for name in names):
                    path = file.relative_to(self.root).as_posix()
                    if is_path(path):
                        with suppress(*_ABSENT):  # removed meanwhile
                            status = file.stat()
                            yield Entry(path, status.st_size, status.st_mtime)

    def local_path(self, path: str) -> Path:
        file = self._file(path)
        with _reading(path):
            if not stat.S_ISREG(file.stat().st_mode):
                raise NotStored(path)
        return file

    def discard(self, path: str) -> None:
        """Nothing: the object itself is all there is."""
        require_path(path)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.get(path)
        return data, _generation(data)

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        with self._comparing(path) as found:
            if found != generation:
                return None
            self.put(path, data)
        return _generation(data)

    def delete_if(self, path: str, generation: str) -> bool:
        with self._comparing(path) as found:
            if found != generation:
                return False
            self.delete(path)
        return True

    @contextmanager
    def _comparing(self, path: str) -> Iterator[str | None]:
        """The generation of an object, which no other `put_if` changes within the block."""
        require_path(path)
        with _reaching(path):
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _reaching(path):
                _lock(lock)
            try:
                found = self.get_versioned(path)[1]
            except NotStored:
                found = None
            yield found
        finally:
            os.close(lock)

    def _file(self, path: str) -> Path:
        return self.root / require_path(path)

    @contextmanager
    def _writing(self, path: str) -> Iterator[BinaryIO]:
        """A stream whose content appears under `path` when the block ends well, and never when it does not."""
        target = self._file(path)
        with _reaching(path):
            made = [folder for folder in target.parents if not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_remains(target.parent)
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)
            unfinished = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                unfinished.chmod(0o644)
                unfinished.replace(target)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            # Another put may have made a folder of the store and been killed; above the root only what is new is ours.
            ours = {folder for folder in target.parents if folder.is_relative_to(self.root)}
            for folder in ours.union(new.parent for new in made):
                _sync_folder(folder)


def _lock(descriptor: int) -> None:
    """Raises TimeoutError if another process has it for `COMPARE_S_MAX`: it is suspended, or its disk is."""
    until_s = time.monotonic() + COMPARE_S_MAX
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock of this store") from None
        time.sleep(_LOOK_S)


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, _ABSENT):
        raise error


def _generation(data: bytes) -> str:
    """Objects that are compared say who wrote them and when: the same content is the same object."""
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_remains(folder: Path) -> None:
    """Remove what killed puts left in a folder."""
    oldest_s = time.time() - UNFINISHED_S_MAX
    for unfinished in folder.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):  # somebody else's, or removed meanwhile: no reason not to put
            if unfinished.stat().st_mtime < oldest_s:
                unfinished.unlink()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    with _reaching(path):
        try:
            yield
        except _ABSENT as error:
            raise NotStored(path) from error


@contextmanager
def _reaching(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path!r}: {error.strerror or error}") from error
