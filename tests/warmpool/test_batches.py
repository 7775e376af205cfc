"""Rows that go in padded come out as they would have without company or padding."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.served import doubling, method, part, tensor
from warmpool.arena import dtype_of
from warmpool.batches import Batch, fill, take
from warmpool.selection import Candidate

MASK = tensor("mask", "int32", "batch", "seq", pad=0, low=0, high=1, length_mask=True)
DTYPES = ("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32")

seeds = st.integers(0, 2**32 - 1)
pads = st.none() | st.integers(0, 3)


def drawn(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits at all, but for bool, where only two values mean something."""
    raw = random.integers(0, 2 if dtype == "bool" else 256, (*shape, dtype_of(dtype).itemsize), dtype=np.uint8)
    return raw.view(dtype_of(dtype)).reshape(shape)


def left_over(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A region of the arena as the batch before left it."""
    return np.full((*shape, dtype_of(dtype).itemsize), 1, np.uint8).view(dtype_of(dtype)).reshape(shape)


def bits(array: np.ndarray) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def padded(spec, shape, sources):
    """What a region has to hold, one source after the other along the first axis."""
    wanted = np.full(shape, 0 if spec.pad is None else spec.pad, dtype_of(spec.dtype))
    row = 0
    for source in sources:
        wanted[(slice(row, row + len(source)), *map(slice, source.shape[1:]))] = source
        row += len(source)
    return wanted


def pad_of(dtype: str, pad: int | None) -> Any:
    if pad is None:
        return None
    return bool(pad) if dtype == "bool" else float(pad) if "float" in dtype else pad


@st.composite
def input_specs(draw):
    """One to three inputs with the batch dimension, of rank 1 to 4."""
    specs = []
    for number in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        axes = draw(st.lists(st.sampled_from(["seq", "width", 1, 3]), max_size=3))
        specs.append(tensor(f"x{number}", dtype, "batch", *axes, pad=pad_of(dtype, draw(pads))))
    return specs


@given(
    specs=input_specs(),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 16)), min_size=1, max_size=4),
    spare=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=seeds,
)
def test_parts_that_share_a_batch_come_back_as_they_went_in(specs, sizes, spare, seed):
    random = np.random.default_rng(seed)
    identity = method(specs, specs)

    def shape_of(spec, sizes):
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in spec.shape)

    async def round_trip():
        parts = []
        for rows, seq in sizes:
            known = {"batch": rows, "seq": seq, "width": 5}
            need = {name: known[name] for name in identity.dims}
            parts.append(part(identity, need, [drawn(random, spec.dtype, shape_of(spec, need)) for spec in specs]))
        largest = {
            "batch": sum(rows for rows, _ in sizes) + spare[0],
            "seq": max(seq for _, seq in sizes) + spare[1],
            "width": 5,
        }
        batch = batch_of(identity, parts, **{name: largest[name] for name in identity.dims})
        regions = [left_over(spec.dtype, shape_of(spec, largest)) for spec in specs]
        batch.fill(regions)
        return batch, regions, cut_all(batch, regions)

    batch, regions, cut = asyncio.run(round_trip())
    for one, outputs in zip(batch.parts, cut, strict=True):
        assert [bits(output) for output in outputs] == [bits(array) for array in one.inputs]
    for number, (spec, region) in enumerate(zip(specs, regions, strict=True)):
        assert bits(region) == bits(padded(spec, region.shape, [one.inputs[number] for one in batch.parts]))
    true = sum(array.size for one in batch.parts for array in one.inputs)
    assert batch.padding == pytest.approx(1 - true / sum(region.size for region in regions))
    assert (batch.elements, batch.padded_elements) == (true, sum(region.size for region in regions) - true)
    assert batch.rows == sum(rows for rows, _ in sizes)
    assert batch.padded_rows == (spare[0] if identity.batch else 0)


def cut_all(batch, results):
    """Every part's outputs."""
    rows = [0, *itertools.accumulate(part.rows for part in batch.parts)]
    return [batch.cut(part, row, results) for part, row in zip(batch.parts, rows, strict=False)]


def batch_of(served, parts, **bucket):
    return Batch(method=served, parts=parts, executable=Candidate(0, bucket, 1.0), formed_ns=0)


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=4),
    pad=pads,
    seed=seeds,
)
def test_one_tensor_of_any_rank_is_padded_and_cut(dtype, shape, pad, seed):
    spec = tensor("x", dtype, pad=pad_of(dtype, pad))
    source = drawn(np.random.default_rng(seed), dtype, tuple(size for size, _ in shape))
    region = left_over(dtype, tuple(size + spare for size, spare in shape))
    fill(spec, region, [source])
    assert bits(take(region, source.shape)) == bits(source)
    if shape:
        assert bits(region) == bits(padded(spec, region.shape, [source]))


def test_a_scalar_is_filled_and_taken():
    region = np.array(9.0, np.float32)
    fill(tensor("x", "float32", pad=5.0), region, [np.array(2.5, np.float32)])
    assert region == 2.5
    taken = take(region, ())
    region[...] = 7.0
    assert (taken.item(), taken.shape) == (2.5, ())


def test_what_was_cut_does_not_change_with_the_arena():
    async def cut():
        served = doubling()
        parts = [part(served, {"batch": 2}, [np.array([1, 2], np.int32)])]
        results = [np.array([2, 4, 0, 0], np.int32)]
        ((output,),) = cut_all(batch_of(served, parts, batch=4), results)
        results[0][:] = -1
        return output

    output = asyncio.run(cut())
    assert output.tolist() == [2, 4]
    assert output.flags.c_contiguous


def test_outputs_are_cut_by_the_expressions_of_their_shapes():
    async def cut():
        served = method(
            [tensor("ids", "int32", "batch", "seq")],
            [tensor("doubled", "int32", "batch", "2*seq + 1"), tensor("total", "int32", "batch")],
        )
        parts = [
            part(served, {"batch": 1, "seq": 2}, [np.zeros((1, 2), np.int32)]),
            part(served, {"batch": 2, "seq": 1}, [np.zeros((2, 1), np.int32)]),
        ]
        doubled = np.arange(4 * 9, dtype=np.int32).reshape(4, 9)
        return cut_all(batch_of(served, parts, batch=4, seq=4), [doubled, np.arange(4, dtype=np.int32)])

    first, second = asyncio.run(cut())
    assert [output.tolist() for output in first] == [[[0, 1, 2, 3, 4]], [0]]
    assert [output.tolist() for output in second] == [[[9, 10, 11], [18, 19, 20]], [1, 2]]


def test_a_method_whose_rows_do_not_merge_is_cut_from_the_beginning():
    async def cut():
        served = method([tensor("x", "int32", "batch")], [tensor("total", "int32"), tensor("same", "int32", "batch")])
        assert not served.mergeable
        one = part(served, {"batch": 3}, [np.array([1, 2, 3], np.int32)])
        return cut_all(batch_of(served, [one], batch=4), [np.array(6, np.int32), np.array([1, 2, 3, 0], np.int32)])

    ((total, same),) = asyncio.run(cut())
    assert (total.tolist(), same.tolist()) == (6, [1, 2, 3])


def test_a_part_of_a_method_without_a_batch_dimension_counts_as_one_row():
    async def rows():
        served = method([tensor("x", "int32", "seq")], [tensor("y", "int32", "seq")])
        return part(served, {"seq": 7}, [np.zeros(7, np.int32)]).rows

    assert asyncio.run(rows()) == 1


@pytest.mark.parametrize(
    ("bucket", "name"), [({"batch": 8, "seq": 16}, "batch=8,seq=16"), ({"seq": 4}, "seq=4"), ({}, "*")]
)
def test_a_batch_is_named_by_its_bucket(bucket, name):
    assert batch_of(doubling(), [], **bucket).bucket == name


def test_a_batch_that_fills_its_bucket_has_no_padding():
    async def padding():
        served = doubling()
        batch = batch_of(served, [part(served, {"batch": 2}, [np.array([1, 2], np.int32)])] * 2, batch=4)
        region = np.full(4, -1, np.int32)
        batch.fill([region])
        return region.tolist(), batch.padding

    assert asyncio.run(padding()) == ([1, 2, 1, 2], 0.0)


def test_a_length_mask_that_takes_no_memory_is_padded_with_zeros() -> None:
    ones = [np.broadcast_to(np.ones((), np.int32), shape) for shape in ((1, 2), (2, 3))]
    region = left_over("int32", (4, 4))
    fill(MASK, region, ones)
    assert region.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    fill(MASK, region[:1, :2], ones[:1])
    assert region[0].tolist() == [1, 1, 0, 0]


def test_pieces_of_which_one_is_answered_and_one_fails_at_once_fail_the_whole_without_further_trouble():
    async def settled():
        troubles: list[dict] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        whole = part(doubling(), {"batch": 2}, [np.array([1, 2], np.int32)])
        first, second = whole.fall_apart(1)
        nothing: Any = None
        first.answer.set_result(nothing)
        second.answer.set_exception(ValueError("no room"))
        with pytest.raises(ValueError, match="no room"):
            await whole.answer
        return troubles

    assert asyncio.run(settled()) == []
