"""Padding and cutting are each other's inverse, and what is proved covers every edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.publishing.proved import planned
from warmpool.manifest import DimSpec, Manifest, MethodSpec, TensorSpec, ToleranceSpec, WeightsSpec, bucket_name
from warmpool.publishing.subject import Case, Row, Subject
from warmpool.publishing.values import Fill

BATCH = DimSpec(name="batch", max=8, sizes=(1, 2, 8), batch=True)
SEQ = DimSpec(name="seq", max=8, sizes=(1, 4, 8))
WIDTH = DimSpec(name="width", max=6, sizes=(3, 6))


def subject_of(*inputs: TensorSpec, dims: tuple[DimSpec, ...] = (BATCH, SEQ, WIDTH)) -> Subject:
    """A method that returns its inputs, those that every row has of its own."""
    outputs = tuple(
        TensorSpec(name=one.name, dtype=one.dtype, shape=one.shape)
        for one in inputs
        if BATCH not in dims or "batch" in one.shape
    )
    manifest = Manifest(
        model="toy",
        version="1",
        default_method="predict",
        dims=dims,
        methods={"predict": MethodSpec(programs={}, symbolic=True, inputs=inputs, outputs=outputs)},
        weights=WeightsSpec(digest="", size_bytes=0, tensors=()),
        tolerance=ToleranceSpec(rtol=0.0, atol=0.0),
    )
    return Subject(manifest, "predict")


def tensor(name: str, *shape: int | str, dtype: str = "float32", **more: Any) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, **more)


INPUTS = (
    tensor("ids", "batch", "seq", dtype="int32", pad=-1, low=-1, high=99),
    tensor("free", "batch", "seq", "width"),
    tensor("flag", "batch", dtype="bool"),
    tensor("half", "batch", 3, "seq", dtype="bfloat16", low=0.5),
    tensor("shared", dtype="float32", low=0.0, high=1.0),
)
BUCKETS = st.fixed_dictionaries({dim.name: st.sampled_from(dim.sizes) for dim in (BATCH, SEQ, WIDTH)})


@given(bucket=BUCKETS, fill=st.sampled_from(["written", "garbage"]), data=st.data())
def test_cutting_gives_back_what_was_padded(bucket: dict[str, int], fill: Any, data: st.DataObject) -> None:
    subject = subject_of(*INPUTS)
    rows = tuple(
        Row({name: data.draw(st.integers(1, bucket[name])) for name in ("seq", "width")}, data.draw(st.integers(0, 2)))
        for _ in range(data.draw(st.integers(1, bucket["batch"])))
    )
    padded = subject.padded(bucket, Case(rows, fill))
    for index, row in enumerate(rows):
        for given_back, exact in zip(subject.cut(padded[:4], index, row), subject.exact(row)[:4], strict=True):
            assert given_back.dtype == exact.dtype
            np.testing.assert_array_equal(given_back, exact)


@given(bucket=BUCKETS, data=st.data())
def test_padding_holds_the_declared_pad_even_beside_garbage(bucket: dict[str, int], data: st.DataObject) -> None:
    subject = subject_of(*INPUTS)
    row = Row({name: data.draw(st.integers(1, bucket[name])) for name in ("seq", "width")}, 0)
    length = row.point["seq"]
    written, wild = (subject.padded(bucket, Case((row,), fill)) for fill in ("written", "garbage"))
    for ids in (written[0], wild[0]):
        assert (ids[0, length:] == -1).all()
    assert (written[1][0, length:] == 0).all()
    if bucket["seq"] > length:
        assert (wild[1][0, length:] != 0).any()


@pytest.mark.parametrize("fill", ["NaN", "infinity"])
def test_what_is_not_finite_lies_only_where_nothing_is_declared_and_the_bounds_let_it(fill: Fill) -> None:
    subject = subject_of(*INPUTS)
    bucket = {"batch": 8, "seq": 8, "width": 6}
    row = Row({"seq": 5, "width": 3}, 0)
    written, hostile = (subject.padded(bucket, Case((row,), one)) for one in ("written", fill))
    for found, exact in zip(subject.cut(hostile[:4], 0, row), subject.exact(row)[:4], strict=True):
        np.testing.assert_array_equal(found, exact)
    ids, free, flag, half = hostile[:4]
    for index, unchanged in ((0, ids), (2, flag), (4, hostile[4])):
        np.testing.assert_array_equal(unchanged, written[index])
    is_meant = np.isnan if fill == "NaN" else np.isinf
    padding = np.ones(free.shape, bool)
    padding[0, :5, :3] = False
    np.testing.assert_array_equal(is_meant(free), padding)
    wide = half.astype(np.float32)  # bounded from below: no NaN, and infinity above alone
    assert (wide[1:] == (0 if fill == "NaN" else np.inf)).all()


def test_a_declared_pad_stays_beside_whatever_other_rows_hold() -> None:
    subject = subject_of(tensor("x", "batch", "seq", pad=0.0))
    (x,) = subject.padded({"batch": 2, "seq": 8}, Case((Row({"seq": 5}, 0),), "NaN"))
    assert (x[0, 5:] == 0).all()
    assert np.isnan(x[1]).all()


@given(bucket=BUCKETS)
def test_every_point_is_in_a_batch_without_room_and_others_have_one_row_less_one_and_one_over_the_bucket_below(
    bucket: dict[str, int],
) -> None:
    subject = subject_of(*INPUTS)
    points = subject.points(bucket, planned(subject))
    batches = subject.batches(bucket, points)
    whole = [rows for rows, fills in batches if len(rows) == bucket["batch"] and fills]
    assert {bucket_name(row.point) for rows in whole for row in rows} == {bucket_name(point) for point in points}
    assert {row.variant for rows in whole for row in rows} == set(range(3)) or len(points) + bucket["batch"] < 4
    assert [(len(rows), bool(fills)) for rows, fills in batches[len(whole) :]] == {
        1: [],
        2: [(1, True)],
        8: [(7, True), (3, False), (1, False)],
    }[bucket["batch"]]


def test_rows_of_a_batch_differ_in_shape_and_in_values() -> None:
    subject = subject_of(*INPUTS)
    bucket = {"batch": 8, "seq": 8, "width": 6}
    rows, _ = subject.batches(bucket, [{"seq": 8, "width": 6}, {"seq": 5, "width": 4}])[0]
    assert [(row.point["seq"], row.variant) for row in rows[:6]] == [(8, 0), (5, 1), (8, 1), (5, 2), (8, 2), (5, 0)]
    ids = subject.padded(bucket, Case(rows, "written"))[0]
    assert len({row.tobytes() for row in ids}) == 6  # then the first ones again


def test_rows_that_share_an_input_with_a_size_are_of_one_shape() -> None:
    subject = subject_of(tensor("x", "batch", "seq"), tensor("table", "seq"))
    bucket = {"batch": 2, "seq": 8}
    points = subject.points(bucket, planned(subject))
    batches = [rows for rows, _ in subject.batches(bucket, points)]
    for rows in batches:
        assert len({bucket_name(row.point) for row in rows}) == 1
    assert {bucket_name(rows[0].point) for rows in batches} == {bucket_name(point) for point in points}
    row = Row({"seq": 5}, 0)
    np.testing.assert_array_equal(subject.exact(row)[1], subject.exact(Row({"seq": 5}, 1))[1])


def test_a_method_without_a_batch_is_padded_as_a_whole() -> None:
    subject = subject_of(tensor("x", "seq", 2), dims=(SEQ,))
    row = Row({"seq": 5}, 1)
    (padded,) = subject.padded({"seq": 8}, Case((row,), "written"))
    (exact,) = subject.exact(row)
    assert padded.shape == (8, 2)
    np.testing.assert_array_equal(padded[:5], exact)
    np.testing.assert_array_equal(subject.cut([padded], 0, row)[0], exact)
