"""Stores: where artifacts, weights and manifests lie.

A path is relative, with "/" between parts. A put is atomic and durable: a reader sees the whole old object, the whole
new one, or none. Readers take no lock.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from cache.errors import NotStored, StoreUnavailable

_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_UNFINISHED = ".unfinished-"
UNFINISHED_S_MAX = 24 * 3600.0  # a put that wrote nothing for that long was killed
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Store(Protocol):
    """Methods raise StoreUnavailable where the store cannot be reached, ValueError for what is no path."""

    def get(self, path: str) -> bytes:
        """The object's bytes; NotStored if there is none."""

    def put(self, path: str, data: bytes) -> None:
        """Store or replace, atomically."""

    def put_file(self, path: str, source: Path) -> None:
        """Store the content of a local file, atomically, without holding it in memory."""

    def names(self, folder: str) -> list[str]:
        """Names of the objects and folders that lie directly in a folder, sorted; none if there is no such folder."""

    def local_path(self, path: str) -> Path:
        """A local file with the object's content, which a lane may map; NotStored if there is none."""


class LocalStore:
    """A folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def get(self, path: str) -> bytes:
        file = self._file(path)
        with _reading(path):
            return file.read_bytes()

    def put(self, path: str, data: bytes) -> None:
        with self._writing(path) as stream:
            stream.write(data)

    def put_file(self, path: str, source: Path) -> None:
        with source.open("rb") as content, self._writing(path) as stream:
            shutil.copyfileobj(content, stream, 1 << 20)

    def names(self, folder: str) -> list[str]:
        below = self._file(folder)
        with _reaching(folder):
            try:
                return sorted(found.name for found in below.iterdir() if _PATH.fullmatch(found.name))
            except _ABSENT:
                return []

    def local_path(self, path: str) -> Path:
        file = self._file(path)
        with _reading(path):
            if not stat.S_ISREG(file.stat().st_mode):
                raise NotStored(path)
        return file

    def _file(self, path: str) -> Path:
        if not _PATH.fullmatch(path):
            raise ValueError(
                f"{path!r} is not a store path: use names of letters, digits, '.', '_' and '-', joined by '/'"
            )
        return self.root / path

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


def open_store(uri: str) -> Store:
    """The store of a URI: a folder's path, or `file:///folder`."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError(f"store {uri!r}: a file URI has three slashes and an absolute path, as file:///folder")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme and "://" in uri:
        raise ValueError(
            f"store {uri!r}: the scheme {parts.scheme!r} is not known; use a folder's path or file:///folder"
        )
    if not uri:
        raise ValueError("store: it is empty; give a folder's path or file:///folder")
    return LocalStore(Path(uri))


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
