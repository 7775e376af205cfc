"""What is proved covers every edge and some sizes inside, the same ones for everybody who proves it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.manifest import bucket_name
from warmpool.publishing.points import INTERIOR_MIN, SHARED_MAX, Point, edge_points, interior_points


def grid(**sizes: tuple[int, ...]) -> list[Point]:
    return [dict(zip(sizes, chosen, strict=True)) for chosen in itertools.product(*sizes.values())]


LONG = grid(long=(16, 32, 64, 128, 256))
SEQ = grid(seq=(1, 4, 8))
TWO = grid(seq=(1, 4, 8), width=(3, 6))
# As they are fitted to traffic: no combination of anything, and each larger than the one before in one way.
STAIRS: list[Point] = [
    {"seq": 4, "width": 6},
    {"seq": 9, "width": 6},
    {"seq": 9, "width": 20},
    {"seq": 30, "width": 5},
    {"seq": 30, "width": 20},
]
PLANS: tuple[list[Point], ...] = (LONG, SEQ, TWO, STAIRS, [{}])


def test_a_bucket_is_proved_at_its_size_one_under_at_the_bucket_below_one_over_that_and_at_1() -> None:
    assert edge_points({"long": 64}, LONG) == [{"long": size} for size in (64, 33, 32, 63, 1)]
    assert edge_points({"long": 16}, LONG) == [{"long": size} for size in (16, 1, 15)]
    assert edge_points({"seq": 1}, SEQ) == [{"seq": 1}]
    assert edge_points({}, [{}]) == [{}]


def test_one_over_the_next_smaller_sizes_are_all_dimensions_or_one_of_them() -> None:
    assert edge_points({"seq": 8, "width": 6}, TWO) == [
        {"seq": 8, "width": 6},
        {"seq": 5, "width": 4},
        {"seq": 5, "width": 6},
        {"seq": 8, "width": 4},
        {"seq": 4, "width": 3},
        {"seq": 7, "width": 5},
        {"seq": 1, "width": 1},
    ]
    assert edge_points({"seq": 1, "width": 3}, TWO) == [
        {"seq": 1, "width": 3},
        {"seq": 1, "width": 1},
        {"seq": 1, "width": 2},
    ]


def test_the_bucket_below_is_one_of_the_plan_whatever_its_form() -> None:
    found = {bucket_name(bucket): edge_points(bucket, STAIRS) for bucket in STAIRS}
    assert {"seq": 9, "width": 6} in found["seq=30,width=20"]  # smaller both ways, and larger than seq=4,width=6
    assert {"seq": 4, "width": 6} in found["seq=9,width=6"]
    assert {"seq": 4, "width": 6} in found["seq=9,width=20"]
    assert all(size != 9 for point in found["seq=4,width=6"] for size in point.values())


def test_stored_references_are_looked_for_at_the_bucket_below_where_there_is_one() -> None:
    assert edge_points({"seq": 8, "width": 6}, TWO, stored=True) == [
        {"seq": 8, "width": 6},
        {"seq": 4, "width": 3},
        {"seq": 4, "width": 6},
        {"seq": 8, "width": 3},
        {"seq": 1, "width": 1},
    ]
    # No bucket is below a width of 3: what is left open would be every width under it.
    assert edge_points({"seq": 8, "width": 3}, TWO, stored=True) == [
        {"seq": 8, "width": 3},
        {"seq": 5, "width": 1},
        {"seq": 4, "width": 3},
        {"seq": 8, "width": 1},
        {"seq": 1, "width": 1},
    ]


@pytest.mark.parametrize("plan", [LONG, SEQ, TWO])
def test_what_has_no_stored_reference_is_a_point_of_a_first_publish_too(plan: list[Point]) -> None:
    plain = [point for bucket in plan for point in edge_points(bucket, plan)]
    for bucket in plan:
        for point in edge_points(bucket, plan, stored=True):
            assert point in plain or point in plan


@given(plan=st.sampled_from(PLANS), program=st.text(max_size=3), data=st.data())
def test_no_point_is_below_1_or_above_its_bucket_and_none_is_there_twice(
    plan: list[Point], program: str, data: st.DataObject
) -> None:
    bucket = data.draw(st.sampled_from(plan))
    for points in (edge_points(bucket, plan), interior_points(bucket, plan, program)):
        assert points
        names = [bucket_name(point) for point in points]
        assert len(set(names)) == len(names)
        assert all(list(point) == list(bucket) for point in points)
        assert all(1 <= size <= bucket[name] for point in points for name, size in point.items())


@pytest.mark.parametrize("bucket", LONG[1:])
def test_sizes_inside_are_some_of_the_buckets_own_and_some_of_smaller_ones(bucket: Point) -> None:
    below, size = bucket["long"] // 2, bucket["long"]
    drawn = [point["long"] for point in interior_points(bucket, LONG, "p")]
    own = [one for one in drawn if one > below]
    assert own
    assert all(below + 2 <= one <= size - 2 for one in own)  # what is at an edge is proved anyway
    smaller = [
        point["long"]
        for other in LONG
        if other["long"] < size
        for point in interior_points(other, LONG, "p")
        if point["long"] > other["long"] // 2 or other["long"] == 16
    ]
    assert 1 <= len(set(drawn) - set(own)) <= SHARED_MAX
    assert set(drawn) - set(own) <= set(smaller)


@pytest.mark.parametrize("plan", PLANS)
def test_buckets_draw_together_no_more_than_each_its_own(plan: list[Point]) -> None:
    """What they share is free: a reference of a smaller one, of the plan as it is."""
    found = {bucket_name(point) for bucket in plan for point in interior_points(bucket, plan, "p")}
    assert len(found) <= max(len(plan), INTERIOR_MIN)


def test_sizes_inside_follow_from_the_program_and_the_bucket() -> None:
    drawn = {program: [interior_points(bucket, LONG, program) for bucket in LONG] for program in ("a", "b")}
    assert drawn["a"] != drawn["b"]
    assert len({bucket_name(points[0]) for points in drawn["a"]}) == len(LONG)
    # What is stored is found again only if these stay what they are.
    sizes = [[point["long"] for point in points] for points in drawn["a"]]
    assert sizes == [[14], [30, 14], [53, 14, 30], [66, 30, 14], [161, 30, 53]]


@pytest.mark.parametrize("sizes", [(32,), (16, 32), (16, 32, 64)])
def test_a_method_of_few_buckets_is_proved_at_more_sizes_inside_each(sizes: tuple[int, ...]) -> None:
    plan = grid(seq=sizes)
    counts = []
    for program in map(str, range(20)):  # a size may be drawn twice
        found = {point["seq"] for bucket in plan for point in interior_points(bucket, plan, program)}
        counts.append(len(found))
    assert max(counts) == INTERIOR_MIN
    assert min(counts) >= INTERIOR_MIN // 2
