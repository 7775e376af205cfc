"""Both ends of an arena compute the same places, aligned and apart, and see the same memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.arena import HALVES, Arena, Region, aligned, dtype_of, regions
from warmpool.dtypes import DTYPES
from warmpool.manifest import ALIGN_BYTES

specs = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=4).map(tuple)), min_size=1, max_size=6
)


def test_bfloat16_and_numpys_own_dtypes_are_known():
    assert dtype_of("bfloat16") == ml_dtypes.bfloat16
    assert [dtype_of(name) for name in ("bool", "int8", "float32")] == [np.bool_, np.int8, np.float32]
    with pytest.raises(TypeError):
        dtype_of("float31")


@given(specs, st.integers(0, 200))
def test_regions_lie_aligned_in_order_and_apart(tensors, start):
    placed = regions(tensors, start)
    assert [(region.dtype, region.shape) for region in placed] == [(dtype_of(name), shape) for name, shape in tensors]
    end = start
    for region in placed:
        assert region.offset % ALIGN_BYTES == 0
        assert end <= region.offset < end + ALIGN_BYTES
        assert region.end == region.offset + np.empty(region.shape, region.dtype).nbytes
        end = region.end


def test_no_tensors_need_no_regions():
    assert regions(()) == []


def test_a_region_of_many_elements_does_not_overflow():
    assert Region(0, np.dtype("float32"), (2**20, 2**20)).end == 2**42
    assert Region(64, np.dtype("float64"), (2**63, 2)).end == 64 + 2**67


@given(specs)
def test_what_one_end_writes_the_other_reads(tensors):
    placed = regions(tensors)
    front = Arena.create(placed[-1].end)
    try:
        lane = Arena(os.dup(front.descriptor), front.size_bytes)
        try:
            for number, region in enumerate(placed):
                front.array(region)[...] = np.full(region.shape, number + 1).astype(region.dtype)
            for number, region in enumerate(placed):
                assert (lane.array(region) == np.full(region.shape, number + 1).astype(region.dtype)).all()
        finally:
            lane.close()
    finally:
        front.close()


def test_an_arena_has_at_least_a_page_and_begins_as_zeros():
    arena = Arena.create(0)
    assert arena.size_bytes == mmap.PAGESIZE
    for half in range(HALVES):
        assert not arena.array(Region(0, np.dtype("uint8"), (mmap.PAGESIZE,)), half).any()
    arena.close()


def test_what_lies_in_one_half_is_not_touched_by_what_is_written_into_the_other():
    front = Arena.create(1000)
    lane = Arena(os.dup(front.descriptor), front.size_bytes)
    for size_bytes in (front.size_bytes, 10 * mmap.PAGESIZE):
        front.grow(size_bytes)
        lane.view(front.size_bytes)
        whole = Region(0, np.dtype("uint8"), (front.size_bytes,))
        front.array(whole, 0)[...] = 1
        front.array(whole, 1)[...] = 2
        assert [set(lane.array(whole, half).tolist()) for half in range(HALVES)] == [{1}, {2}]
    assert front.runs_begun == 0
    lane.close()
    front.close()


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int16).reshape(2, 3).T, np.float32(2.5), np.empty((0, 3))])
def test_a_copy_is_aligned_as_an_arena_is(array):
    for _ in range(5):
        copy = aligned(np.asarray(array))
        assert copy.size == 0 or copy.ctypes.data % ALIGN_BYTES == 0
        assert (copy.dtype, copy.shape, copy.tolist()) == (array.dtype, array.shape, array.tolist())


def test_memory_is_aligned_as_xla_asks():
    arena = Arena.create(1000)
    for region in regions([("int8", (3,)), ("float32", (5,)), ("bfloat16", ())]):
        assert arena.array(region).ctypes.data % ALIGN_BYTES == 0
    arena.close()


def test_a_region_beyond_the_end_is_refused():
    arena = Arena.create(0)
    with pytest.raises(TypeError, match="buffer is too small"):
        arena.array(Region(mmap.PAGESIZE - 64, np.dtype("float32"), (17,)))
    arena.close()


def test_views_outlive_a_closed_arena():
    arena = Arena.create(64)
    view = arena.array(Region(0, np.dtype("int32"), (4,)))
    view[:] = 7
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(arena.descriptor)
    assert view.tolist() == [7] * 4


def test_an_arena_cannot_be_found_by_others_by_name():
    arena = Arena.create(64)
    assert str(Path(f"/proc/self/fd/{arena.descriptor}").readlink()).endswith("(deleted)")
    assert not os.get_inheritable(arena.descriptor)
    arena.close()


def test_the_front_sees_how_many_runs_the_lane_has_begun() -> None:
    front = Arena.create(1)
    lane = Arena(os.dup(front.descriptor), front.size_bytes)
    assert front.runs_begun == 0
    lane.begin_run()
    lane.begin_run()
    assert front.runs_begun == 2
    for half in range(HALVES):
        assert not front.array(Region(0, np.dtype("uint8"), (front.size_bytes,)), half).any()
    lane.close()
    front.close()


def test_an_arena_grows_and_what_lies_in_it_stays_for_both_sides() -> None:
    front = Arena.create(100)
    lane = Arena(os.dup(front.descriptor), front.size_bytes)
    small, large = Region(64, np.dtype("int32"), (4,)), Region(128, np.dtype("int32"), (mmap.PAGESIZE,))
    before = front.array(small)
    before[:] = 7
    lane.begin_run()
    assert not front.grow(front.size_bytes), "there is room already"
    assert front.grow(large.end)
    assert (front.size_bytes, front.runs_begun) == (5 * mmap.PAGESIZE, 1)
    lane.view(front.size_bytes)
    front.array(large)[:] = 8
    assert (lane.array(small).tolist(), lane.array(large)[-1]) == ([7] * 4, 8)
    before[:] = 9  # a view of before sees what both see
    lane.begin_run()
    assert (lane.array(small).tolist(), front.runs_begun) == ([9] * 4, 2)
    lane.close()
    front.close()


def test_an_arena_never_shrinks() -> None:
    arena = Arena.create(3 * mmap.PAGESIZE)
    assert not arena.grow(0)
    assert arena.size_bytes == 3 * mmap.PAGESIZE
    arena.close()
