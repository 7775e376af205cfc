"""The folder of JAX's own persistent compilation cache: read as JAX would read it, written as JAX should write it.

JAX writes entries in place and never repairs one: what a killed process left torn is a miss in every later process. An
entry is `<name>-cache`, with `<name>-atime` beside it where the folder's size is limited; the name is JAX's cache key.
Its content is compressed: 4 bytes that say how long the compile took, and what PJRT serialised. With zlib or with
zstandard, as the interpreter has it; and under Python 3.14 the same name stands for zstandard where it means zlib under
an older one.
"""

from __future__ import annotations

import importlib
import os
import platform
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cache.errors import NotStored, StoreUnavailable
from cache.file_lock import lock_alone
from cache.fingerprint import cpu_features

LOCKED_S_MAX = 30.0  # JAX evicts under its lock: who holds it for longer is suspended
WRITTEN_S_MAX = 10.0  # a torn entry that is younger may be one that is being written

_ENTRY = "-cache"
_ACCESSED = "-atime"
_LOCK = ".lockfile"  # which JAX holds where it limits the folder's size
_UNFINISHED = ".warmpool-"
_UNFINISHED_S_MAX = 3600.0
_NAME_BYTES_MAX = 240
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Compression:
    """How JAX compresses in this interpreter: what it is called here, how it is undone, and what that raises."""

    name: str
    decompress: Callable[[bytes], bytes]
    error: type[Exception]


def compression() -> Compression:
    """What JAX uses here: it looks for zstandard in the same places, in this order."""
    with suppress(ImportError):
        zstd = importlib.import_module("compression.zstd")  # from Python 3.14 on
        return Compression("zstd", zstd.decompress, zstd.ZstdError)
    with suppress(ImportError):
        zstandard = importlib.import_module("zstandard")
        return Compression(
            "zstd", lambda data: bytes(zstandard.ZstdDecompressor().decompress(data)), zstandard.ZstdError
        )
    return Compression("zlib", zlib.decompress, zlib.error)


@dataclass(slots=True)
class Entries:
    """What a folder holds, by name: whole entries, what is wrong with torn ones, and those of another compression."""

    whole: set[str] = field(default_factory=set)
    torn: dict[str, str] = field(default_factory=dict)
    other: set[str] = field(default_factory=set)


class JaxCache:
    """A folder that JAX was told to keep compiled programs in. Methods raise StoreUnavailable for one that fails.

    Args:
        folder: JAX_COMPILATION_CACHE_DIR; it need not exist.

    Attributes:
        readers: What decides, besides the name, whether another machine may use an entry. JAX's key has none of it: a
            CPU's executable loads on a processor that lacks its instructions, and dies there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compression = compression()
        self.readers = {
            "compression": self.compression.name,
            "machine": platform.machine(),
            "cpu_features": cpu_features(),
        }

    def __repr__(self) -> str:
        return f"JaxCache({str(self.folder)!r}, {self.compression.name})"

    def entries(self) -> Entries:
        """Read every entry, as JAX would."""
        found = Entries()
        for name in self._names():
            try:
                fault = self.fault(name, self.read(name))
            except NotStored:  # evicted meanwhile
                continue
            if fault is None:
                found.other.add(name)
            elif fault:
                found.torn[name] = fault
            else:
                found.whole.add(name)
        return found

    def fault(self, name: str, data: bytes) -> str | None:
        """What is wrong with an entry's content, "" if nothing is, None if it is one of another compression."""
        written = _written_with(data)
        if written and written != self.compression.name:
            return None
        try:
            content = self.compression.decompress(data)
        except self.compression.error as error:
            return f"{len(data)} bytes of {name!r} cannot be decompressed: {error}"
        return "" if len(content) > 4 else f"{name!r} holds no executable"

    def read(self, name: str) -> bytes:
        """The bytes of an entry. Raises NotStored."""
        with self._reaching():
            try:
                return self._file(name).read_bytes()
            except FileNotFoundError as error:
                raise NotStored(name) from error

    def write(self, name: str, data: bytes) -> bool:
        """Put an entry there whole, unless there is a whole one; whether there was not."""
        with self._reaching():
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = self.folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # as JAX does
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                with self._alone() as limited:
                    with suppress(NotStored):
                        if self.fault(name, self.read(name)) in {"", None}:
                            return False
                    if limited:
                        accessed = self.folder / f"{name}{_ACCESSED}"
                        accessed.write_bytes(time.time_ns().to_bytes(8, "little"))
                    unfinished.replace(self._file(name))
                    return True
            finally:
                unfinished.unlink(missing_ok=True)

    def remove_torn(self, name: str) -> bool:
        """Remove an entry that is torn, so that JAX writes it anew; not one that may be just being written."""
        with self._reaching(), self._alone():
            try:
                changed_s = self._file(name).stat().st_mtime
                if time.time() - changed_s < WRITTEN_S_MAX or self.fault(name, self.read(name)) in {"", None}:
                    return False
            except (FileNotFoundError, NotStored):
                return False
            for ending in (_ENTRY, _ACCESSED):
                (self.folder / f"{name}{ending}").unlink(missing_ok=True)
            return True

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_ENTRY}"

    def _names(self) -> Iterator[str]:
        with self._reaching(), suppress(FileNotFoundError):
            for file in sorted(self.folder.iterdir()):
                if file.name.startswith(_UNFINISHED):
                    _remove_remains(file)
                name = file.name.removesuffix(_ENTRY)
                if name != file.name and is_name(name) and file.is_file():
                    yield name

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """While JAX evicts nothing; whether it does so in this folder at all."""
        try:
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        try:
            lock_alone(lock, LOCKED_S_MAX, _LOCK)
            yield True
        finally:
            os.close(lock)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"JAX's cache {self.folder}: {error.strerror or error}") from error


def is_name(name: str) -> bool:
    """Whether it may be that of an entry: one part of a path, not hidden, that fits into a file's name."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size_bytes <= _NAME_BYTES_MAX and not name.startswith(".") and not {"/", "\0"} & set(name)


def _remove_remains(unfinished: Path) -> None:
    """Remove what a killed write left."""
    with suppress(OSError):
        if time.time() - unfinished.stat().st_mtime > _UNFINISHED_S_MAX:
            unfinished.unlink()


def _written_with(data: bytes) -> str:
    """The compression that the first bytes speak of, "" for none."""
    if data.startswith(_ZSTD_MAGIC):
        return "zstd"
    if len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0:
        return "zlib"
    return ""
