from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.shape_sketch import FAINT, Shape, ShapeSketch, summed

NOW_S = 1.7e9
SHAPES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2**31)), max_size=60)


def counted(shapes: list[Shape], cells_max: int = 2048) -> ShapeSketch:
    sketch = ShapeSketch(cells_max)
    for shape in shapes:
        sketch.add(shape, NOW_S)
    return sketch


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=200))
def test_few_shapes_are_counted_exactly(shapes: list[Shape]) -> None:
    sketch = counted(shapes, cells_max=49)
    assert sketch.cells(NOW_S) == summed((shape, 1.0) for shape in shapes)
    assert (sketch.seen, sketch.error_max) == (len(shapes), 0.0)


@given(SHAPES, st.integers(1, 20))
def test_many_shapes_take_no_more_cells_than_are_allowed_and_none_is_lost(shapes: list[Shape], cells_max: int) -> None:
    sketch = counted(shapes, cells_max)
    cells = sketch.cells(NOW_S)
    assert len(cells) <= cells_max
    assert sum(cells.values()) == pytest.approx(len(shapes))


@given(st.sampled_from([3000, 2**31]), st.integers(1, 30), st.data())
def test_a_size_is_too_large_by_no_more_than_the_error_that_is_stated(
    largest: int, cells_max: int, data: st.DataObject
) -> None:
    """For a bucket that just covers, or just not: what it covers for sure, and if it is larger by the error."""
    sizes = st.tuples(st.integers(0, 2), st.integers(0, largest))
    shapes: list[Shape] = [*data.draw(st.lists(sizes, min_size=40, max_size=60))]
    sketch = counted(shapes, cells_max)
    one = data.draw(st.sampled_from(shapes))
    bucket = (one[0], max(0, one[1] - data.draw(st.integers(0, 1))))
    wider = tuple(max(size, 1) * (1 + sketch.error_max) for size in bucket)

    def covered(sizes: tuple[float, ...]) -> float:
        cells = sketch.cells(NOW_S)
        return sum(weight for shape, weight in cells.items() if all(map(float.__le__, map(float, shape), sizes)))

    truly = sum(all(map(int.__le__, shape, bucket)) for shape in shapes)
    assert covered(tuple(map(float, bucket))) <= truly + 1e-6
    assert truly <= covered(wider) + 1e-6


def test_sizes_of_long_tails_stay_within_a_few_percent() -> None:
    generator = random.Random(5)
    sketch = ShapeSketch()
    for _ in range(30_000):
        rows = min(64, 1 + int(generator.expovariate(0.5)))
        sketch.add((rows, min(8192, 1 + int(generator.lognormvariate(6, 1)))), NOW_S)
    assert sketch.error_max <= 1 / 16
    assert 200 < len(sketch.cells(NOW_S)) <= 2048


def test_a_count_halves_in_a_half_life() -> None:
    sketch = ShapeSketch(half_life_s=100.0)
    for _ in range(8):
        sketch.add((1,), NOW_S)
    assert sketch.cells(NOW_S + 100) == {(1,): pytest.approx(4.0)}
    sketch.add((1,), NOW_S + 100)
    sketch.add((2,), NOW_S + 150)
    assert sketch.cells(NOW_S + 200) == {(1,): pytest.approx(2.5), (2,): pytest.approx(0.5**0.5)}


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 1e6)), min_size=1, max_size=50))
def test_when_counts_are_divided_changes_no_count(arrivals: list[tuple[int, float]]) -> None:
    """Half-lives of a thousand seconds, over up to a thousand of them: no weight overflows."""
    sketch = ShapeSketch(half_life_s=1000.0)
    for size, at_s in sorted(arrivals, key=lambda one: one[1]):
        sketch.add((size,), NOW_S + at_s)
    end_s = max(at_s for _, at_s in arrivals)
    expected = summed(((size,), 0.5 ** ((end_s - at_s) / 1000.0)) for size, at_s in arrivals)
    found = sketch.cells(NOW_S + end_s)
    for shape, weight in expected.items():
        assert found.get(shape, 0.0) == pytest.approx(weight, rel=1e-6, abs=len(arrivals) * FAINT)


def test_what_is_faint_makes_room() -> None:
    sketch = ShapeSketch(cells_max=10, half_life_s=1.0)
    for size in range(10):
        sketch.add((size,), NOW_S)
    for size in range(100, 110):
        sketch.add((size,), NOW_S + 20)
    assert sketch.resolution is None
    assert set(sketch.cells(NOW_S + 20)) == {(size,) for size in range(100, 110)}


def test_a_part_of_an_observation_counts_as_that_part() -> None:
    sketch = ShapeSketch()
    sketch.add((4, 9), NOW_S, 0.25)
    sketch.add((4, 9), NOW_S, 0.5)
    assert sketch.cells(NOW_S) == {(4, 9): pytest.approx(0.75)}
    assert sketch.seen == 2


def test_no_cell_is_wide_enough_only_for_the_very_largest_sizes() -> None:
    """Eight dimensions that all vary: even then the bound holds."""
    generator = random.Random(1)
    sketch = ShapeSketch(cells_max=4)
    for _ in range(500):
        sketch.add(tuple(generator.randint(1, 2**31) for _ in range(8)), NOW_S)
    assert len(sketch.cells(NOW_S)) <= 4


def test_what_was_counted_can_be_read_after_a_clock_was_set_back_by_years():
    sketch = ShapeSketch(half_life_s=1.0)
    sketch.add((1,), 1e6)
    assert sketch.cells(0.0) == {(1,): 1.0}
