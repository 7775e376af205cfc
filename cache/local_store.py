"""A folder as a store: write beside and rename, sync, and no lock for those who read.

An object's generation is when it was written, which is made to differ from when the one before it was. Whoever changes
what a path names does so under one lock, and compares and renames under it, no more: what takes long is done before.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cache.errors import NotStored, StoreUnavailable, not_read
from cache.file_lock import lock_alone
from cache.layout import folder_of
from cache.store import Entry, is_path, require_path

_UNFINISHED = ".unfinished-"
_LOCK = ".lock"  # held by who changes what a path names; the kernel lets go of it for a process that was killed
COMPARE_S_MAX = 10.0  # for so long the lock is waited for
UNFINISHED_S_MAX = 24 * 3600.0  # a put that wrote nothing for that long was killed
_STEPS_NS = (0, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)  # how exactly file systems keep times
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalStore:
    """A folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        file = self._file(path)
        with self._reading(path), _open_file(file) as stream:
            return stream.read(-1 if bytes_max is None else bytes_max)

    def read_into(self, path: str, stream: BinaryIO) -> None:
        """Write the object's content to a stream, without holding it in memory; NotStored if there is none."""
        file = self._file(path)
        with self._reading(path), _open_file(file) as content:
            shutil.copyfileobj(content, stream, 1 << 20)

    def put(self, path: str, data: bytes) -> None:
        self._put(path, lambda stream: stream.write(data))

    def put_file(self, path: str, source: Path) -> None:
        with source.open("rb") as content:
            self._put(path, lambda stream: shutil.copyfileobj(content, stream, 1 << 20))

    def delete(self, path: str) -> None:
        file = self._file(path)
        with _reaching(path):
            try:
                file.lstat()
                with self._comparing(path):
                    file.unlink()
            except OSError as error:
                if not self._is_absent(path, error):
                    raise

    def touch(self, path: str) -> None:
        file = self._file(path)
        with _reaching(path), self._comparing(path) as found:
            if found is None:
                raise NotStored(path)
            with suppress(PermissionError):
                _date(file, found)
                return
        self.put_file(path, file)  # it is another user's, who alone may date it

    def names(self, folder: str) -> list[str]:
        below = self._file(folder)
        with _reaching(folder):
            try:
                return sorted(found.name for found in below.iterdir() if is_path(found.name))
            except OSError as error:
                if self._is_absent(folder, error):
                    return []
                raise

    def entries(self, folder: str) -> Iterator[Entry]:
        top = self._file(folder) if folder else self.root
        with _reaching(folder or "."):
            for parent, folders, names in top.walk(on_error=lambda error: self._raise_if_asked(folder, error)):
                folders[:] = filter(is_path, folders)
                for path in ((parent / name).relative_to(self.root).as_posix() for name in names):
                    if is_path(path) and (status := self._found(path)):
                        yield Entry(path, status.st_size, status.st_mtime, _generation(status))

    def local_path(self, path: str) -> Path:
        file = self._file(path)
        with self._reading(path):
            if not stat.S_ISREG(file.stat().st_mode):
                raise NotStored(path)
        return file

    def discard(self, path: str) -> None:
        """Nothing: the object itself is all there is."""
        require_path(path)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        file = self._file(path)
        with self._reading(path), _open_file(file) as stream:
            return stream.read(), _generation(os.fstat(stream.fileno()))

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        require_path(path)
        with _reaching(path):
            found = self._found(path)
        if _named(found) != generation:  # nothing needs to be written to see that
            return None
        return self._put(path, lambda stream: stream.write(data), lambda now: _named(now) == generation)

    def delete_if(self, path: str, generation: str) -> bool:
        file = self._file(path)
        with _reaching(path), self._comparing(path) as found:
            if found is None or _generation(found) != generation:
                return False
            file.unlink()
        return True

    @contextmanager
    def _comparing(self, path: str) -> Iterator[os.stat_result | None]:
        """What there is of an object, which nobody else changes within the block."""
        require_path(path)
        with _reaching(path):
            self.root.mkdir(parents=True, exist_ok=True)
            lock = _opened(self.root / _LOCK)
        try:
            with _reaching(path):
                lock_alone(lock, COMPARE_S_MAX, "the lock of this store")
                found = self._found(path)
            yield found
        finally:
            os.close(lock)

    def _found(self, path: str) -> os.stat_result | None:
        try:
            status = self._file(path).stat()
        except OSError as error:
            if self._is_absent(path, error):
                return None
            raise
        return status if stat.S_ISREG(status.st_mode) else None

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        with _reaching(path):
            try:
                yield
            except OSError as error:
                if self._is_absent(path, error):
                    raise NotStored(path) from error
                if isinstance(error, PermissionError):
                    raise not_read(path, error) from error
                raise

    def _is_absent(self, path: str, error: OSError) -> bool:
        """Whether an error says that there is no object or folder; a loop of links is none, but for a whole folder."""
        if error.errno != errno.ELOOP:
            return isinstance(error, _ABSENT) or error.errno == errno.ENXIO  # a socket
        top = path.partition("/")[0]
        return top != path and (self.root / top).exists()

    def _raise_if_asked(self, folder: str, error: OSError) -> None:
        """Who lists a whole store does not ask for what lies beside its folders, and may be forbidden to us."""
        path = Path(error.filename).relative_to(self.root).as_posix()
        if not self._is_absent(path, error) and (folder or path == "." or folder_of(f"{path}/x")):
            raise error

    def _file(self, path: str) -> Path:
        return self.root / require_path(path)

    def _put(
        self,
        path: str,
        write: Callable[[BinaryIO], object],
        condition: Callable[[os.stat_result | None], bool] = lambda _: True,
    ) -> str | None:
        """Write to a stream whose content appears under `path` when all of it is there, if the condition holds then.

        The new generation; None: it did not hold.
        """
        target = self._file(path)
        with _reaching(path):
            made = [folder for folder in target.parents if not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_remains(target.parent)
            unfinished = target.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _mode(path))
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    write(stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                with self._comparing(path) as found:
                    if not condition(found):
                        unfinished.unlink()
                        return None
                    generation = _date(unfinished, found)
                    unfinished.replace(target)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            # Another put may have made a folder of the store and been killed; above the root only what is new is ours.
            ours = {folder for folder in target.parents if folder.is_relative_to(self.root)}
            for folder in ours.union(new.parent for new in made):
                _sync_folder(folder)
            return generation


def _mode(path: str) -> int:
    """What is never written again nobody may write to: it is mapped by lanes. The umask takes from either."""
    folder = folder_of(path)
    return 0o444 if folder and folder.immutable else 0o666


def _opened(lock: Path) -> int:
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # over NFS only who may write has the lock
    except PermissionError:  # it is another user's
        return os.open(lock, os.O_RDONLY | os.O_CLOEXEC)


def _open_file(file: Path) -> BinaryIO:
    """Open what is a file, and no pipe or device, at which a reader might wait for ever."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is no file", str(file))
    return os.fdopen(descriptor, "rb")


def _date(file: Path, before: os.stat_result | None) -> str:
    """Date a file now, and after what it takes the place of; its generation."""
    after_ns = before.st_mtime_ns if before else 0
    status = file.stat()
    for step_ns in _STEPS_NS:
        written_ns = max(time.time_ns(), after_ns + 1) + step_ns
        os.utime(file, ns=(written_ns, written_ns))
        status = file.stat()
        if status.st_mtime_ns > after_ns:
            break
    return _generation(status)


def _generation(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"


def _named(found: os.stat_result | None) -> str | None:
    return _generation(found) if found else None


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
def _reaching(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path!r}: {error.strerror or error}") from error
