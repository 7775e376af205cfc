"""The weights blob: what a lane maps and puts on its device without reading a byte twice.

Every tensor lies raw and little-endian at an aligned offset, so that a mapped file is already what XLA's CPU client can
alias and what an accelerator can be sent from. Lanes import this file: numpy only.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
from numpy.typing import NDArray

from cache.errors import Damaged
from warmpool.blob import Blob
from warmpool.manifest import ALIGN_BYTES, WeightSpec, WeightsSpec

_CHUNK_BYTES = 1 << 22


def write_weights(path: Path, tensors: Iterable[tuple[str, NDArray[Any]]]) -> WeightsSpec:
    """Writes the blob of `tensors`, in their order, to a new file and says what is where.

    Only one tensor at a time is held in memory beyond what the caller holds.
    """
    hasher = hashlib.sha256()
    specs: list[WeightSpec] = []
    offset = 0
    with path.open("wb") as stream:
        for name, tensor in tensors:
            padding = bytes(-offset % ALIGN_BYTES)
            offset += len(padding)
            specs.append(WeightSpec(name=name, dtype=tensor.dtype.name, shape=tensor.shape, offset=offset))
            for chunk in (padding, *_chunks(tensor)):
                hasher.update(chunk)
                stream.write(chunk)
            offset += tensor.nbytes
    return WeightsSpec(digest=hasher.hexdigest(), size_bytes=offset, tensors=tuple(specs))


class WeightsFile(Blob):
    """An open blob of weights, to be mapped."""

    def map(self, spec: WeightsSpec) -> list[NDArray[Any]]:
        """The tensors of a blob, in its order, read-only, without a copy; pages are read when they are first touched.

        Raises:
            Damaged: The file's size is not the blob's. Its digest is not looked at.
        """
        size_bytes = os.fstat(self._stream.fileno()).st_size
        if size_bytes != spec.size_bytes:
            raise Damaged(f"weights {spec.digest[:16]}", f"{size_bytes} bytes long instead of {spec.size_bytes}")
        if size_bytes == 0:
            return [np.empty(tensor.shape, tensor.dtype) for tensor in spec.tensors]
        mapped = mmap.mmap(self._stream.fileno(), 0, access=mmap.ACCESS_READ)
        return [_view(mapped, tensor) for tensor in spec.tensors]


def map_weights(path: Path, spec: WeightsSpec) -> list[NDArray[Any]]:
    """The tensors of the blob at a path, as `WeightsFile.map` has them."""
    with WeightsFile(path) as file:
        return file.map(spec)


def digest_file(path: Path) -> str:
    """SHA-256 (hex) of a file's content."""
    with WeightsFile(path) as file:
        return file.digest()


def _view(mapped: mmap.mmap, tensor: WeightSpec) -> NDArray[Any]:
    count = math.prod(tensor.shape)
    # A tensor without elements may lie at the very end, where numpy refuses to begin.
    if count == 0:
        return np.empty(tensor.shape, tensor.dtype)
    return np.frombuffer(mapped, tensor.dtype, count, tensor.offset).reshape(tensor.shape)


def _chunks(tensor: NDArray[Any]) -> Iterable[bytes | memoryview]:
    contiguous = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
    flat = contiguous.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _CHUNK_BYTES):
        yield flat[start : start + _CHUNK_BYTES].data
