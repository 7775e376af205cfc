"""Padding and cutting are each other's inverse, and what is proved covers every edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.manifest import DimSpec, Manifest, MethodSpec, TensorSpec, ToleranceSpec, WeightsSpec, bucket_name
from warmpool.publishing.subject import Case, Row, Subject, garbage, generator_of, is_mask, legal, points_of

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


def test_beside_a_callers_nan_the_valid_rows_are_as_written_and_bounds_hold() -> None:
    subject = subject_of(*INPUTS)
    bucket = {"batch": 8, "seq": 8, "width": 6}
    (case,) = (case for case in subject.cases(bucket, points_of([SEQ, WIDTH], bucket)) if case.fill == "not finite")
    written = subject.padded(bucket, Case(case.rows, "written"))
    hostile = subject.padded(bucket, case)
    for ours, theirs in zip(written[:4], hostile[:4], strict=True):
        np.testing.assert_array_equal(ours[:7], theirs[:7])
    free, half = hostile[1][7:], hostile[3][7:].astype(np.float32)
    assert np.isnan(free).any()
    assert not np.isfinite(free).any()
    assert (half == np.inf).all()
    bounded = subject_of(tensor("x", "batch", low=0.0, high=1.0))
    assert {case.fill for case in bounded.cases({"batch": 8}, [{}])} == {"written", "garbage"}


@given(bucket=BUCKETS)
def test_every_point_is_proved_with_what_is_written_and_with_garbage(bucket: dict[str, int]) -> None:
    subject = subject_of(*INPUTS)
    points = points_of([BATCH, SEQ, WIDTH], bucket)
    cases = subject.cases(bucket, points)
    for fill in ("written", "garbage"):
        proved = {bucket_name(row.point) for case in cases if case.fill == fill for row in case.rows}
        assert proved == {bucket_name(point) for point in points}
    assert all(1 <= len(case.rows) <= bucket["batch"] for case in cases)
    assert any(len(case.rows) == bucket["batch"] for case in cases)
    assert bucket["batch"] == 1 or any(len(case.rows) < bucket["batch"] for case in cases)


def test_a_bucket_is_proved_at_its_size_and_where_all_dimensions_or_one_are_one_over_the_bucket_below() -> None:
    dims = [BATCH, SEQ, WIDTH]
    assert points_of(dims, {"batch": 2, "seq": 8, "width": 6}) == [
        {"seq": 8, "width": 6},
        {"seq": 5, "width": 4},
        {"seq": 5, "width": 6},
        {"seq": 8, "width": 4},
    ]
    assert points_of(dims, {"batch": 2, "seq": 1, "width": 3}) == [{"seq": 1, "width": 3}, {"seq": 1, "width": 1}]
    assert points_of([BATCH, SEQ], {"batch": 2, "seq": 8}) == [{"seq": 8}, {"seq": 5}]
    assert points_of([BATCH, SEQ], {"batch": 2, "seq": 1}) == [{"seq": 1}]
    assert points_of([BATCH], {"batch": 8}) == [{}]


def test_stored_references_are_looked_for_at_the_bucket_below_where_there_is_one() -> None:
    dims = [BATCH, SEQ, WIDTH]
    assert points_of(dims, {"batch": 2, "seq": 8, "width": 6}, stored=True) == [
        {"seq": 8, "width": 6},
        {"seq": 4, "width": 3},
        {"seq": 4, "width": 6},
        {"seq": 8, "width": 3},
    ]
    # No bucket is below a width of 3: what is left open would be every width under it.
    assert points_of(dims, {"batch": 2, "seq": 8, "width": 3}, stored=True) == [
        {"seq": 8, "width": 3},
        {"seq": 5, "width": 1},
        {"seq": 4, "width": 3},
        {"seq": 8, "width": 1},
    ]


@given(bucket=BUCKETS)
def test_what_has_no_stored_reference_is_a_point_of_a_first_publish_too(bucket: dict[str, int]) -> None:
    dims = [BATCH, SEQ, WIDTH]
    plain = points_of(dims, bucket)
    for point in points_of(dims, bucket, stored=True):
        assert point in plain or all(point[dim.name] in dim.sizes for dim in (SEQ, WIDTH))


def test_rows_of_a_batch_differ_in_shape_and_in_values() -> None:
    subject = subject_of(*INPUTS)
    bucket = {"batch": 8, "seq": 8, "width": 6}
    case = subject.cases(bucket, points_of([BATCH, SEQ, WIDTH], bucket))[0]
    assert len({bucket_name(row.point) for row in case.rows}) == 4
    ids = subject.padded(bucket, case)[0]
    assert len({row.tobytes() for row in ids}) == 8  # four points of two value sets each


def test_rows_that_share_an_input_with_a_size_are_of_one_shape() -> None:
    subject = subject_of(tensor("x", "batch", "seq"), tensor("table", "seq"))
    bucket = {"batch": 2, "seq": 8}
    for case in subject.cases(bucket, points_of([BATCH, SEQ], bucket)):
        assert len({bucket_name(row.point) for row in case.rows}) == 1
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


TENSORS = st.sampled_from(
    [
        tensor("a", dtype="int8"),
        tensor("a", dtype="uint8", low=250),
        tensor("a", dtype="int32", low=-5, high=5),
        tensor("a", dtype="int16", high=-3),
        tensor("a", dtype="uint32", low=2**32 - 1),
        tensor("a", dtype="float16", low=-65504.0, high=65504.0),
        tensor("a", dtype="float32", low=0.25),
        tensor("a", dtype="bfloat16", high=-1.0),
        tensor("a", dtype="bool"),
    ]
)


@given(spec=TENSORS, seed=st.integers(0, 1000))
def test_random_values_stay_within_the_bounds(spec: TensorSpec, seed: int) -> None:
    for make in (legal, garbage):
        values = make(spec, (50,), generator_of(str(seed)))
        assert values.dtype.name == spec.dtype
        wide = values.astype(np.float64)
        assert np.isfinite(wide).all()
        assert spec.low is None or (wide >= spec.low).all()
        assert spec.high is None or (wide <= spec.high).all()


@pytest.mark.parametrize(
    ("spec", "mask"),
    [
        (tensor("mask", dtype="int32", low=0, high=1), True),
        (tensor("mask", dtype="bool", pad=False), True),
        (tensor("flag", dtype="bool"), False),
        (tensor("ids", dtype="int32", low=0, high=2), False),
        (tensor("share", dtype="float32", low=0.0, high=1.0), False),
    ],
)
def test_a_mask_is_all_ones_where_it_is_valid(spec: TensorSpec, mask: bool) -> None:
    assert is_mask(spec) == mask
    assert (legal(spec, (40,), generator_of("seed")) == 1).all() == mask
