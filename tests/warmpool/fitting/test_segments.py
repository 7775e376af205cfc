from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.fitting.grids import cost_of
from warmpool.fitting.segments import fit_boundaries, least_covering
from warmpool.fitting.usage import elements

SIZES = st.lists(st.integers(0, 24), min_size=1, max_size=9)


def power(size: Any) -> Any:
    """Grows more slowly than the size, and exactly."""
    return np.asarray(size, np.float64) ** 2 // 8 + 3


def total(values: Sequence[int], weights: Sequence[int], boundaries: Sequence[int], cost: Any) -> float:
    return cost_of(values, weights, (tuple(boundaries),), cost)


def best_by_trying(
    values: Sequence[int], weights: Sequence[int], k: int, cost: Any, fixed: set[int], smallest: int = 1
) -> float:
    """Of all sets of sizes up to the largest, not only of those that were seen."""
    free = [size for size in range(smallest, max(fixed)) if size not in fixed]
    inner = min(k - len(fixed), len(free))
    return min(
        total(values, weights, sorted({*chosen, *fixed}), cost) for chosen in itertools.combinations(free, inner)
    )


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.sampled_from([elements, power]),
    st.integers(0, 2),
)
def test_the_boundaries_are_as_good_as_the_best_of_all(
    seen: list[tuple[int, int]], k: int, cost: Any, above: int
) -> None:
    values, weights = [size for size, _ in seen], [weight for _, weight in seen]
    largest = max(*values, 1) + above
    found = fit_boundaries(values, weights, k, cost, largest=largest)
    assert len(found) <= k
    assert list(found) == sorted(set(found))
    assert found[-1] == largest
    assert total(values, weights, found, cost) == best_by_trying(values, weights, k, cost, {largest})


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=8), st.integers(2, 4), st.integers(1, 12))
def test_a_smallest_boundary_is_there_and_the_rest_is_as_good_as_can_be(
    seen: list[tuple[int, int]], k: int, smallest: int
) -> None:
    values, weights = [size for size, _ in seen], [weight for _, weight in seen]
    found = fit_boundaries(values, weights, k, power, smallest=smallest, largest=12)
    assert (found[0], found[-1]) == (smallest, 12)
    assert len(found) <= k
    assert total(values, weights, found, power) == best_by_trying(values, weights, k, power, {smallest, 12}, smallest)


@given(SIZES, st.integers(1, 8))
def test_more_boundaries_are_never_worse(values: list[int], k: int) -> None:
    weights = [1] * len(values)
    fewer, more = (fit_boundaries(values, weights, count, power, largest=24) for count in (k, k + 1))
    assert total(values, weights, more, power) <= total(values, weights, fewer, power)


@given(SIZES, st.integers(1, 6))
def test_as_many_powers_of_two_are_never_better(values: list[int], k: int) -> None:
    weights = [1] * len(values)
    powers = [1, 2, 4, 8, 16, 24][-k:]
    found = fit_boundaries(values, weights, k, elements, largest=24)
    assert total(values, weights, found, elements) <= total(values, weights, powers, elements)


def test_many_values_are_cut_as_a_plain_loop_cuts_them() -> None:
    values = np.random.default_rng(4).integers(1, 5000, 700)
    sizes, counts = np.unique(values, return_counts=True)
    assert len(sizes) > 2 * 256, "several blocks"
    best = [0.0] + [float("inf")] * len(sizes)
    for _ in range(4):
        before, reached = list(best), 0
        for end in range(1, len(sizes) + 1):
            reached = 0
            for start in range(end - 1, -1, -1):
                reached += int(counts[start])
                best[end] = min(best[end], before[start] + reached * int(sizes[end - 1]))
    found = fit_boundaries(values, np.ones(len(values)), 4, elements)
    assert total(list(values), [1] * len(values), found, elements) == best[-1]


def test_a_cost_that_falls_is_taken_as_it_is() -> None:
    def cost(sizes: Any) -> Any:
        return np.where(np.asarray(sizes) == 3, 100.0, 10.0)

    assert fit_boundaries([2, 3, 4], [1, 1, 1], 3, cost) in {(2, 4), (4,)}, "3 is dear, and 4 covers it"


def test_nothing_seen_leaves_the_boundaries_that_have_to_be_there() -> None:
    assert fit_boundaries([], [], 5, elements, smallest=1, largest=64) == (1, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [1], 0), "k is 0, allowed: 1 or more"),
        (([], [], 1), "no values were given, and no largest size"),
        (([-1], [1], 1), "the values have the shape"),
        (([1], [1, 2], 1), "there are 2 weights, allowed: one for each of 1 values"),
        (([1], [float("nan")], 1), "a weight is below 0 or not finite"),
        (([1], [-1], 1), "a weight is below 0 or not finite"),
    ],
)
def test_what_is_not_allowed_is_named(arguments: tuple[Any, Any, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_boundaries(*arguments, elements)


def test_limits_that_cannot_be_kept_are_named() -> None:
    with pytest.raises(ValueError, match="a value is 9, allowed: up to the largest size, 8"):
        fit_boundaries([9], [1], 1, elements, largest=8)
    with pytest.raises(ValueError, match="the smallest size is 9, allowed: 1 to 8"):
        fit_boundaries([1], [1], 2, elements, smallest=9, largest=8)
    with pytest.raises(ValueError, match="k is 1, allowed: 2 or more"):
        fit_boundaries([1], [1], 1, elements, smallest=1, largest=8)


def test_the_least_covering_boundary_is_the_one_at_or_above() -> None:
    assert least_covering((4, 8), np.array([[1, 4], [5, 8]])).tolist() == [[4, 4], [8, 8]]
    with pytest.raises(ValueError, match="a value is 9, allowed: up to the last boundary, 8"):
        least_covering((4, 8), np.array([9]))
