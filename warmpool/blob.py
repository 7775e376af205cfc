"""An open file that is known by its content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Self


class Blob:
    """An open file. Identity and digest are those of one file, whatever takes its path meanwhile."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    @property
    def identity(self) -> str:
        """What differs between a file and the one that takes its place, or itself once written to."""
        status = os.fstat(self._stream.fileno())
        return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"

    def digest(self) -> str:
        """SHA-256 (hex) of its content."""
        self._stream.seek(0)
        return hashlib.file_digest(self._stream, "sha256").hexdigest()
