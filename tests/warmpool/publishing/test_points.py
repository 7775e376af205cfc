"""What is proved covers every edge and some sizes inside, the same ones for everybody who proves it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.manifest import DimSpec, bucket_name
from warmpool.publishing.points import INTERIOR_MIN, SHARED_MAX, edge_points, interior_points

BATCH = DimSpec(name="batch", max=8, sizes=(1, 2, 8), batch=True)
SEQ = DimSpec(name="seq", max=8, sizes=(1, 4, 8))
WIDTH = DimSpec(name="width", max=6, sizes=(3, 6))
LONG = DimSpec(name="long", max=256, sizes=(16, 32, 64, 128, 256))
DIMS = [BATCH, SEQ, WIDTH]
BUCKETS = st.fixed_dictionaries({dim.name: st.sampled_from(dim.sizes) for dim in DIMS})
LONG_BUCKETS = [{"batch": 8, "long": size} for size in LONG.sizes]


def test_a_bucket_is_proved_at_its_size_one_under_at_the_bucket_below_one_over_that_and_at_1() -> None:
    assert edge_points([BATCH, LONG], {"batch": 2, "long": 64}) == [{"long": size} for size in (64, 33, 32, 63, 1)]
    assert edge_points([BATCH, LONG], {"batch": 2, "long": 16}) == [{"long": size} for size in (16, 1, 15)]
    assert edge_points([BATCH, SEQ], {"batch": 2, "seq": 1}) == [{"seq": 1}]
    assert edge_points([BATCH], {"batch": 8}) == [{}]


def test_one_over_the_bucket_below_are_all_dimensions_or_one_of_them() -> None:
    assert edge_points(DIMS, {"batch": 2, "seq": 8, "width": 6}) == [
        {"seq": 8, "width": 6},
        {"seq": 5, "width": 4},
        {"seq": 5, "width": 6},
        {"seq": 8, "width": 4},
        {"seq": 4, "width": 3},
        {"seq": 7, "width": 5},
        {"seq": 1, "width": 1},
    ]
    assert edge_points(DIMS, {"batch": 2, "seq": 1, "width": 3}) == [
        {"seq": 1, "width": 3},
        {"seq": 1, "width": 1},
        {"seq": 1, "width": 2},
    ]


def test_stored_references_are_looked_for_at_the_bucket_below_where_there_is_one() -> None:
    assert edge_points(DIMS, {"batch": 2, "seq": 8, "width": 6}, stored=True) == [
        {"seq": 8, "width": 6},
        {"seq": 4, "width": 3},
        {"seq": 4, "width": 6},
        {"seq": 8, "width": 3},
        {"seq": 1, "width": 1},
    ]
    # No bucket is below a width of 3: what is left open would be every width under it.
    assert edge_points(DIMS, {"batch": 2, "seq": 8, "width": 3}, stored=True) == [
        {"seq": 8, "width": 3},
        {"seq": 5, "width": 1},
        {"seq": 4, "width": 3},
        {"seq": 8, "width": 1},
        {"seq": 1, "width": 1},
    ]


@given(bucket=BUCKETS)
def test_what_has_no_stored_reference_is_a_point_of_a_first_publish_too(bucket: dict[str, int]) -> None:
    plain = [point for sizes in all_buckets() for point in edge_points(DIMS, sizes)]
    for point in edge_points(DIMS, bucket, stored=True):
        assert point in plain or all(point[dim.name] in dim.sizes for dim in (SEQ, WIDTH))


@given(bucket=BUCKETS, program=st.text(max_size=3))
def test_no_point_is_below_1_or_above_its_bucket_and_none_is_there_twice(bucket: dict[str, int], program: str) -> None:
    for points in (edge_points(DIMS, bucket), interior_points(DIMS, bucket, program)):
        assert points
        names = [bucket_name(point) for point in points]
        assert len(set(names)) == len(names)
        assert all(list(point) == ["seq", "width"] for point in points)
        assert all(1 <= size <= bucket[name] for point in points for name, size in point.items())


@pytest.mark.parametrize("bucket", LONG_BUCKETS[1:])
def test_sizes_inside_are_some_of_the_buckets_own_and_some_of_smaller_ones(bucket: dict[str, int]) -> None:
    below, size = bucket["long"] // 2, bucket["long"]
    drawn = [point["long"] for point in interior_points([BATCH, LONG], bucket, "p")]
    own = [one for one in drawn if one > below]
    assert own
    assert all(below + 2 <= one <= size - 2 for one in own)  # what is at an edge is proved anyway
    smaller = {
        point["long"]
        for other in LONG_BUCKETS
        if other["long"] < size
        for point in interior_points([BATCH, LONG], other, "p")
        if point["long"] > other["long"] // 2 or other["long"] == 16
    }
    assert 1 <= len(set(drawn) - set(own)) <= SHARED_MAX
    assert set(drawn) - set(own) <= smaller


def test_sizes_inside_follow_from_the_program_and_the_bucket_and_not_from_its_batch() -> None:
    drawn = {
        program: [interior_points([BATCH, LONG], bucket, program) for bucket in LONG_BUCKETS] for program in ("a", "b")
    }
    assert drawn["a"] != drawn["b"]
    for bucket, points in zip(LONG_BUCKETS, drawn["a"], strict=True):
        assert interior_points([BATCH, LONG], {**bucket, "batch": 1}, "a") == points
    # What is stored is found again only if these stay what they are.
    sizes = [[point["long"] for point in points] for points in drawn["a"]]
    assert sizes == [
        [14],
        [30, 14],
        [53, 14, 30],
        [66, 30, 14],
        [161, 30, 53],
    ]


@pytest.mark.parametrize("sizes", [(32,), (16, 32), (16, 32, 64)])
def test_a_method_of_few_buckets_is_proved_at_more_sizes_inside_each(sizes: tuple[int, ...]) -> None:
    dim = DimSpec(name="seq", max=sizes[-1], sizes=sizes)
    counts = []
    for program in map(str, range(20)):  # a size may be drawn twice
        found = {point["seq"] for size in sizes for point in interior_points([dim], {"seq": size}, program)}
        counts.append(len(found))
    assert max(counts) == INTERIOR_MIN
    assert min(counts) >= INTERIOR_MIN // 2


def all_buckets() -> list[dict[str, int]]:
    return [{"batch": 1, "seq": seq, "width": width} for seq in SEQ.sizes for width in WIDTH.sizes]
