"""A far store with a folder of this machine before it: what does not change comes from far once, what does is kept.

Objects that a key or digest names (`executables/`, `programs/`, `weights/`, `jax-cache/`) are read from their local
copy, if there is one; that one is there says nothing of the far store, so who decides by presence what to make or
remove asks that one itself. Documents (`models/`, `distrusted/`) are always asked for, and answered as they last were
while the far store cannot be reached: an instance can then start all the same. Everything else is passed on.

A folder that takes no copy costs downloads and memory, and no answer: what is asked for as a file is one in memory
then, until the folder takes it.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from cache.errors import CacheError, NotStored, StoreUnavailable
from cache.far_store import FarStore, Remote
from cache.layout import folder_of
from cache.local_copies import LocalCopies, Unkept
from cache.local_store import LocalStore
from cache.memory_files import MemoryFiles
from cache.store import Entry, require_path

log = logging.getLogger(__name__)

_HOLDS_MAX = 3


class ReadThroughStore:
    """Around another store.

    Args:
        remote: Where it all lies.
        folder: Of this machine; several processes may share it. It is of this remote alone.
        bytes_max: Of the copies in it; documents come on top.
        hasty: The same remote with less patience, for questions to which there is another answer.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        remote: Remote,
        folder: Path,
        bytes_max: int,
        *,
        hasty: Remote | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.remote = remote
        self.folder = folder
        self._far = FarStore(remote, hasty, clock)
        self._copies = LocalCopies(folder / "objects", bytes_max)
        self._answers = LocalStore(folder / "documents")
        self._unkept_files = MemoryFiles()
        self._unkept = False
        self._flights: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ReadThroughStore({self.remote!r}, {str(self.folder)!r})"

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        require_path(path)
        if _is_document(path):
            data = self._document(path)
            return data if bytes_max is None else data[:bytes_max]
        if _is_immutable(path):
            found = self._copies.read(path, bytes_max)
            if found is None and bytes_max is None:
                found = self._fetched(path)
            if found is not None:
                return found
        return self._far.ask(lambda remote: remote.get(path, bytes_max=bytes_max))

    def local_path(self, path: str) -> Path:
        """A local file with the content, which stays there as long as this store object does, or until it is discarded.

        It is in memory where the folder does not take it, and stays there even if the folder does later.

        Raises:
            StoreUnavailable: Also where neither the folder takes it nor the system has such files to give.
        """
        require_path(path)
        if _is_document(path):
            return self._document_file(path)
        if not _is_immutable(path):
            return self.remote.local_path(path)
        try:
            for _ in range(_HOLDS_MAX):
                if file := self._copies.hold(path):
                    return file
                self._fetch(path, hold=True)
        except Unkept as error:
            self._note_unkept(path, error)
        return self._in_memory(path, lambda stream: self._read_into(path, stream))

    def put(self, path: str, data: bytes) -> None:
        self.remote.put(path, data)
        self._written(path, data)

    def put_file(self, path: str, source: Path) -> None:
        self.remote.put_file(path, source)
        self._written(path, source)

    def delete(self, path: str) -> None:
        self.remote.delete(path)
        self.discard(path)

    def touch(self, path: str) -> None:
        self.remote.touch(path)

    def names(self, folder: str) -> list[str]:
        if not _is_document(f"{require_path(folder)}/any"):
            return self._far.ask(lambda remote: remote.names(folder))
        listing = f"listings/{sha256(folder.encode()).hexdigest()}"
        return self._as_last(listing, lambda remote: "\n".join(remote.names(folder)).encode()).decode().split()

    def entries(self, folder: str) -> Iterator[Entry]:
        return self.remote.entries(folder)

    def discard(self, path: str) -> None:
        require_path(path)
        if _is_immutable(path):
            self._drop(path)
        elif _is_document(path):
            self._forget(path)
        else:
            self.remote.discard(path)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        return self.remote.get_versioned(path)

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        new = self.remote.put_if(path, data, generation)
        if new is not None:
            self._written(path, data)
        return new

    def delete_if(self, path: str, generation: str) -> bool:
        had = self.remote.delete_if(path, generation)
        if had:
            self.discard(path)
        return had

    # What does not change

    def _fetched(self, path: str) -> bytes | None:
        """The content of an object, kept from now on; None where it cannot be kept."""
        try:
            self._fetch(path)
        except Unkept as error:
            self._note_unkept(path, error)
            return None
        return self._copies.read(path)

    def _fetch(self, path: str, *, hold: bool = False) -> None:
        """Make a copy."""
        self._once(path, lambda: self._copies.keep(path, lambda stream: self._read_into(path, stream), hold=hold))

    def _read_into(self, path: str, stream: BinaryIO) -> None:
        """Write the content of an object, from memory if it is there."""
        if file := self._unkept_files.find(path):
            with suppress(FileNotFoundError):  # discarded meanwhile
                _write(stream, file)
                return
        self._far.ask(lambda remote: remote.read_into(path, stream))

    def _in_memory(self, name: str, write: Callable[[BinaryIO], None]) -> Path:
        """A file that is no copy, the same one until it is forgotten."""
        for _ in range(_HOLDS_MAX):
            turn = self._unkept_files.turn(name)
            if file := self._unkept_files.find(name):
                return file
            self._once(f"memory {name}", partial(self._unkept_files.add, name, write, turn))
        raise StoreUnavailable(f"{name!r} is discarded again and again while it is read")

    def _once(self, name: str, make: Callable[[], object]) -> None:
        """Of all threads that want it at the same time, one makes it; the others share what comes of it."""
        with self._lock:
            flight = self._flights.get(name)
            if mine := flight is None:
                flight = self._flights[name] = Future()
        if not mine:
            return flight.result()
        try:
            make()
        except BaseException as error:
            flight.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._flights[name]
            if not flight.done():
                flight.set_result(None)

    def _written(self, path: str, content: bytes | Path) -> None:
        """Keep what was just written, if that can be done."""
        try:
            if _is_immutable(path):
                self._drop(path)  # a repaired one has other bytes under the same name
                self._copies.keep(path, lambda stream: _write(stream, content))
            elif _is_document(path):
                self._remember(path, content if isinstance(content, bytes) else content.read_bytes())
        except (Unkept, OSError) as error:
            self._note_unkept(path, error)

    def _drop(self, path: str) -> None:
        self._copies.drop(path)
        self._unkept_files.forget(path)

    # What does

    def _document(self, path: str) -> bytes:
        return self._as_last(path, lambda remote: remote.get(path))

    def _document_file(self, path: str) -> Path:
        data = self._document(path)
        try:
            if self._last(path) != data:
                self._answers.put(path, data)
            return self._answers.local_path(path)
        except CacheError as error:
            self._note_unkept(path, error)
        return self._in_memory(f"{path} {sha256(data).hexdigest()}", lambda stream: _write(stream, data))

    def _as_last(self, path: str, question: Callable[[Remote], bytes]) -> bytes:
        """The remote's answer, which is kept under a path; while it cannot be reached, the one that is kept."""
        last = self._last(path)
        if last is not None and self._far.is_away:
            return last
        try:
            answer = self._far.ask(question, hastily=last is not None)
        except NotStored:
            self._forget(path)
            raise
        except StoreUnavailable:
            if last is None:
                raise
            return last
        if answer != last:
            self._remember(path, answer)
        return answer

    def _last(self, path: str) -> bytes | None:
        try:
            return self._answers.get(path)
        except CacheError:
            return None

    def _remember(self, path: str, data: bytes) -> None:
        try:
            self._answers.put(path, data)
        except StoreUnavailable as error:
            self._note_unkept(path, error)

    def _forget(self, path: str) -> None:
        with suppress(StoreUnavailable):
            self._answers.delete(path)

    def _note_unkept(self, path: str, error: Exception) -> None:
        if not self._unkept:
            log.warning("copies cannot be kept", extra={"path": path, "reason": str(error)})
        self._unkept = True


def _is_immutable(path: str) -> bool:
    folder = folder_of(path)
    return folder is not None and folder.immutable


def _is_document(path: str) -> bool:
    folder = folder_of(path)
    return folder is not None and folder.recalled


def _write(stream: BinaryIO, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        stream.write(content)
    else:
        with content.open("rb") as source:
            shutil.copyfileobj(source, stream, 1 << 20)
