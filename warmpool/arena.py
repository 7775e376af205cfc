"""Shared memory between the front and one lane: batches go in, results come out, nothing else is copied between them.

It has two halves, so that a batch can be written while another one runs. Both sides compute the same regions from the
same specs, so a message only says which executable to run, and in which half.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warmpool.manifest import ALIGN_BYTES

HALVES = 2
_COUNTER = np.dtype(np.uint64)
_FIRST_BYTES = mmap.PAGESIZE  # with the counter, before the tensors: where they lie does not change with the size
_APART_BYTES = 1 << 40  # from one half to the other, with nothing in between: both may grow
_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


@lru_cache(maxsize=64)
def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's dtype of a manifest's dtype name; bfloat16 is not one of numpy's own."""
    return _DTYPES.get(name) or np.dtype(name)


@dataclass(frozen=True, slots=True)
class Region:
    """Where one tensor lies: `offset` in bytes, a multiple of ALIGN_BYTES."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + self.dtype.itemsize * math.prod(self.shape)


def regions(tensors: Iterable[tuple[str, tuple[int, ...]]], start: int = 0) -> list[Region]:
    """One region a tensor (dtype name, shape), in order, none overlapping, all aligned."""
    placed: list[Region] = []
    for name, shape in tensors:
        region = Region(-(-start // ALIGN_BYTES) * ALIGN_BYTES, dtype_of(name), shape)
        placed.append(region)
        start = region.end
    return placed


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy in memory that is aligned as an arena's is, so that the device uses it where it lies."""
    memory = np.empty(array.nbytes + ALIGN_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGN_BYTES
    copy: NDArray[Any] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _end_of(size_bytes: int) -> int:
    return (HALVES - 1) * _APART_BYTES + _FIRST_BYTES + size_bytes


def _whole_pages(size_bytes: int) -> int:
    return -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


class Arena:
    """Anonymous shared memory in two halves; pages that are never written cost nothing.

    Before the tensors it counts the runs that the lane has begun: that tells who was in a lane that died from who was
    only on the way to it.

    Attributes:
        size_bytes: Of each half.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self.view(size_bytes)

    @classmethod
    def create(cls, size_bytes: int) -> Arena:
        """A new arena, its size rounded up to whole pages."""
        descriptor = os.memfd_create("warmpool-arena")
        os.ftruncate(descriptor, _end_of(_whole_pages(size_bytes)))
        return cls(descriptor, _whole_pages(size_bytes))

    def grow(self, size_bytes: int) -> bool:
        """Have room for so much; whether it had not. What lies in it stays; the other side is to `view` it anew."""
        if size_bytes <= self.size_bytes:
            return False
        os.ftruncate(self.descriptor, _end_of(_whole_pages(size_bytes)))
        self.view(_whole_pages(size_bytes))
        return True

    def view(self, size_bytes: int) -> None:
        """See so much of it, which the other side may have made larger."""
        self.size_bytes = size_bytes
        self._halves = [
            mmap.mmap(self.descriptor, _FIRST_BYTES + size_bytes, offset=half * _APART_BYTES) for half in range(HALVES)
        ]
        self._begun = np.ndarray((1,), _COUNTER, self._halves[0])

    def array(self, region: Region, half: int = 0) -> NDArray[Any]:
        """The tensor of a region, a view of the shared memory; `half` is 0 or 1."""
        return np.ndarray(region.shape, region.dtype, self._halves[half], _FIRST_BYTES + region.offset)

    @property
    def runs_begun(self) -> int:
        """How many runs the lane has begun in this arena."""
        return int(self._begun[0])

    def begin_run(self) -> None:
        """Count a run, before anything of it can go wrong. The lane's side."""
        self._begun[0] += 1

    def close(self) -> None:
        """Give the descriptor back. The memory goes when the last view of it does."""
        os.close(self.descriptor)
