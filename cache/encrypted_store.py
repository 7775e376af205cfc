"""A store whose weights, executables and programs are encrypted on the way in, and decrypted on the way out.

Decrypted files never touch a disk (but where the system swaps): they are files in memory, see `cache.memory_files`.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cache.data_keys import DataKeys
from cache.encryption import (
    CHUNK_BYTES,
    MAGIC,
    decrypt,
    encrypt,
    encrypted_bytes,
    is_envelope,
    prefix_bytes_max,
    wrapped_by,
)
from cache.errors import NotStored, StoreUnavailable, Unreadable, not_read
from cache.layout import folder_of
from cache.memory_files import MemoryFiles
from cache.store import Entry, Store

log = logging.getLogger(__name__)

_TRIES_MAX = 8


class EncryptedStore:
    """Around another store.

    Args:
        inner: Where it all lies.
        keys: None: nothing is encrypted, and what is encrypted all the same cannot be read.

    Attributes:
        unencrypted: How often something was read that should be encrypted and is not: it was stored before there was
            a key. It is given all the same: what it is worth, a signature says.
    """

    def __init__(self, inner: Store, keys: DataKeys | None) -> None:
        self.inner = inner
        self.keys = keys
        self.unencrypted = 0
        self._files = MemoryFiles()

    def __repr__(self) -> str:
        return f"EncryptedStore({self.inner!r}, {self.keys!r})"

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The object's content, or no more than the first `bytes_max`, of which no more is decrypted than is needed.

        Raises:
            Damaged: It was changed, or lay elsewhere.
            Unreadable: It is encrypted under a key that is not given here, which whoever has the key can read.
            StoreUnavailable: The key cannot be asked.
        """
        if not _is_secret(path):
            return self.inner.get(path, bytes_max=bytes_max)
        stored = self.inner.get(path, bytes_max=None if bytes_max is None else prefix_bytes_max(bytes_max))
        return self._content(path, stored, bytes_max)

    def wrapped_by(self, path: str) -> str | None:
        """The name of the key that an object is encrypted under, "" for none; None if it need not be encrypted.

        Raises:
            Damaged, Foreign: That cannot be read.
        """
        return wrapped_by(path, self.inner.get(path, bytes_max=prefix_bytes_max(0))) if _is_secret(path) else None

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(path, self._stored(path, data))
        self._files.forget(path)

    def put_file(self, path: str, source: Path) -> None:
        if not _is_secret(path) or self.keys is None:
            self.inner.put_file(path, source)
        else:
            key = self.keys.current()
            with source.open("rb") as content, tempfile.NamedTemporaryFile(prefix="warmpool-encrypted-") as envelope:
                envelope.writelines(encrypt(path, content, key))
                envelope.flush()
                self.inner.put_file(path, Path(envelope.name))
        self._files.forget(path)

    def delete(self, path: str) -> None:
        self.inner.delete(path)
        self._files.forget(path)

    def touch(self, path: str) -> None:
        self.inner.touch(path)

    def names(self, folder: str) -> list[str]:
        return self.inner.names(folder)

    def entries(self, folder: str) -> Iterator[Entry]:
        """Every object below a folder, with its size as it is stored."""
        return self.inner.entries(folder)

    def local_path(self, path: str) -> Path:
        """A local file with the content: decrypted in memory, the same one until it is discarded or replaced.

        Raises:
            Damaged, StoreUnavailable: As `get`; and this where the system has no such files to give.
        """
        if not _is_secret(path):
            return self.inner.local_path(path)
        for _ in range(_TRIES_MAX):
            turn = self._files.turn(path)
            if file := self._files.find(path) or self._decrypted_file(path, turn):
                return file
        raise StoreUnavailable(f"{path!r} is replaced again and again while it is decrypted")

    def _decrypted_file(self, path: str, turn: int) -> Path | None:
        """As `local_path`; None if it was replaced since that turn."""
        file = self.inner.local_path(path)
        with _opened(path, file) as stream:
            if not is_envelope(stream.read(len(MAGIC))):
                self._note_unencrypted(path)
                return file
            stream.seek(0)
            return self._files.add(path, lambda content: content.writelines(self._decrypted(path, stream)), turn)

    def discard(self, path: str) -> None:
        self._files.forget(path)
        self.inner.discard(path)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        stored, generation = self.inner.get_versioned(path)
        return (self._content(path, stored, None) if _is_secret(path) else stored), generation

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        new = self.inner.put_if(path, self._stored(path, data), generation)
        self._files.forget(path)
        return new

    def delete_if(self, path: str, generation: str) -> bool:
        deleted = self.inner.delete_if(path, generation)
        self._files.forget(path)
        return deleted

    def _stored(self, path: str, data: bytes) -> bytes:
        """What to store for a content."""
        if not _is_secret(path) or self.keys is None:
            return data
        return encrypted_bytes(path, data, self.keys.current())

    def _content(self, path: str, stored: bytes, bytes_max: int | None) -> bytes:
        if not is_envelope(stored):
            self._note_unencrypted(path)
            return stored if bytes_max is None else stored[:bytes_max]
        if bytes_max is None:
            return b"".join(self._decrypted(path, io.BytesIO(stored)))
        chunks = max(1, -(-bytes_max // CHUNK_BYTES))
        return b"".join(self._decrypted(path, io.BytesIO(stored), chunks))[:bytes_max]

    def _decrypted(self, path: str, envelope: BinaryIO, chunks_max: int | None = None) -> Iterator[bytes]:
        if self.keys is None:
            lacking = f"{path!r} is encrypted: give the key as encryption_key"
            raise Unreadable(lacking, told=lacking)
        limit = {} if chunks_max is None else {"chunks_max": chunks_max}
        return decrypt(path, envelope, self.keys.secret, **limit)

    def _note_unencrypted(self, path: str) -> None:
        if self.keys is None:
            return
        self.unencrypted += 1
        if self.unencrypted == 1:
            log.warning("the store has unencrypted content from before it had a key", extra={"path": path})


def _opened(path: str, file: Path) -> BinaryIO:
    """A local file of an object, which may be gone by now."""
    try:
        return file.open("rb")
    except FileNotFoundError:
        raise NotStored(path) from None
    except OSError as error:
        raise not_read(path, error) from error


def _is_secret(path: str) -> bool:
    folder = folder_of(path)
    return folder is None or folder.secret  # what nobody said anything of is not given away
