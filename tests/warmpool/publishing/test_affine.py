"""A sum of multiples of dimensions is found from samples, and only such a sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmpool.publishing.affine import fitted
from warmpool.symbolic import shape_of

SIZES = st.lists(st.integers(1, 100), min_size=2, max_size=4, unique=True)


@given(st.integers(-3, 3), st.integers(0, 3), st.integers(-9, 9), SIZES, SIZES)
def test_the_expression_found_gives_every_sample(
    height_factor: int, width_factor: int, constant: int, heights: list[int], widths: list[int]
) -> None:
    samples = [
        ({"height": height, "width": width}, height_factor * height + width_factor * width + constant)
        for height in heights
        for width in widths
    ]
    found = fitted(samples)
    assert found is not None
    assert all(shape_of((found,), sizes) == (size,) for sizes, size in samples)


def test_expressions_are_written_as_a_person_would() -> None:
    assert fitted([({"seq": 1}, 7), ({"seq": 2}, 7)]) == 7
    assert fitted([({"seq": 1}, 1), ({"seq": 2}, 2)]) == "seq"
    assert fitted([({"seq": 1}, 3), ({"seq": 2}, 5)]) == "2*seq + 1"
    assert fitted([({"seq": 3}, 1), ({"seq": 4}, 2)]) == "seq - 2"


def test_a_dimension_with_one_size_counts_as_the_constant() -> None:
    assert fitted([({"batch": 1, "seq": 1}, 3), ({"batch": 1, "seq": 2}, 5)]) == "2*seq + 1"


def test_nothing_is_found_where_no_sum_fits() -> None:
    assert fitted([({"seq": size}, size * size) for size in (1, 2, 3)]) is None
    assert fitted([({"seq": size}, -(-size // 2)) for size in (1, 2, 3)]) is None
