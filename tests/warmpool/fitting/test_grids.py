from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmpool.fitting import grids
from warmpool.fitting.grids import Grid, Limits, cost_of, fit_grid, fit_within
from warmpool.fitting.usage import elements, padding

SEEN = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12)
LIMITS = Limits(smallest=(1, None), largest=(7, 9))


def overhead(rows: Any, length: Any) -> Any:
    """A call has a price of its own, so what many rows take is not what each of them takes."""
    return 40.0 + np.asarray(rows, np.float64) * np.asarray(length, np.float64) ** 2


def shapes_of(seen: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    return [(rows, length) for rows, length, _ in seen], [weight for _, _, weight in seen]


def every_grid(counts: tuple[int, ...], limits: Limits) -> list[Grid]:
    """All grids of so many sizes, of whatever sizes."""
    choices = []
    for count, low, high in zip(counts, limits.smallest, limits.largest, strict=True):
        fixed = {high} if low is None else {low, high}
        free = [size for size in range(1, high) if size not in fixed]
        chosen = itertools.combinations(free, min(count - len(fixed), len(free)))
        choices.append([tuple(sorted({*inner, *fixed})) for inner in chosen])
    return list(itertools.product(*choices))


def best_by_trying(seen: list[tuple[int, int, int]], counts: tuple[int, ...], cost: Any) -> float:
    shapes, weights = shapes_of(seen)
    return min(cost_of(shapes, weights, grid, cost) for grid in every_grid(counts, LIMITS))


@settings(deadline=None)
@given(SEEN, st.sampled_from([(2, 1), (2, 2), (3, 2)]), st.sampled_from([elements, overhead]))
def test_a_grid_is_the_best_there_is_where_one_dimension_has_few_choices(
    seen: list[tuple[int, int, int]], counts: tuple[int, int], cost: Any
) -> None:
    found = fit_grid(*shapes_of(seen), counts, cost, LIMITS)
    assert found.exact
    assert found.cost == pytest.approx(best_by_trying(seen, counts, cost), rel=1e-12)
    assert found.cost == pytest.approx(cost_of(*shapes_of(seen), found.boundaries, cost), rel=1e-12)


@settings(deadline=None)
@given(SEEN)
def test_improving_in_turn_finds_the_best_of_small_grids_too(seen: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "_EXHAUSTED_MAX", 0)
        found = fit_grid(*shapes_of(seen), (3, 3), overhead, LIMITS)
    assert not found.exact
    assert found.cost == pytest.approx(best_by_trying(seen, (3, 3), overhead), rel=0.05)


@settings(deadline=None, max_examples=30)
@given(SEEN, st.integers(2, 4), st.integers(1, 4))
def test_a_grid_keeps_its_limits_and_covers_all(seen: list[tuple[int, int, int]], rows: int, lengths: int) -> None:
    found = fit_grid(*shapes_of(seen), (rows, lengths), overhead, LIMITS).boundaries
    assert [len(ends) <= count for ends, count in zip(found, (rows, lengths), strict=True)] == [True, True]
    assert (found[0][0], found[0][-1], found[1][-1]) == (1, 7, 9)
    assert all(list(ends) == sorted(set(ends)) for ends in found)


def bursty(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Long lengths are rare, and come alone."""
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(3.5, 1.0, count), 1, 256).astype(np.int64)
    rows = np.clip(generator.geometric(np.clip(lengths / 256, 0.05, 1.0)), 1, 32)
    return np.stack([rows, lengths], axis=1), np.ones(count)


WIDE = Limits(smallest=(1, None), largest=(32, 256))
POWERS = ((1, 4, 16, 32), (32, 64, 128, 256))


@pytest.mark.parametrize("seed", range(3))
def test_a_grid_is_never_worse_than_powers_of_two(seed: int) -> None:
    shapes, weights = bursty(400, seed)
    found = fit_grid(shapes, weights, (4, 4), overhead, WIDE)
    powers = ((1, 8, 16, 32), (32, 64, 128, 256))
    assert found.cost < cost_of(shapes, weights, POWERS, overhead)
    assert found.cost <= cost_of(shapes, weights, powers, overhead)


def test_a_budget_of_buckets_is_shared_out_as_what_was_seen_asks_for() -> None:
    by_length, ones = np.array([(1, length) for length in range(1, 257)]), np.ones(256)
    found = fit_within(by_length, ones, 8, elements, WIDE)
    assert [len(ends) for ends in found.boundaries] == [2, 4], "rows have the two that have to be there"
    by_rows = np.array([(rows, 256) for rows in range(1, 33)])
    found = fit_within(by_rows, np.ones(32), 8, elements, WIDE)
    assert [len(ends) for ends in found.boundaries] == [8, 1]
    assert found.exact


@pytest.mark.parametrize("seed", range(2))
def test_more_buckets_are_never_worse(seed: int) -> None:
    shapes, weights = bursty(200, seed)
    costs = [fit_within(shapes, weights, count, overhead, WIDE).cost for count in (4, 8, 12)]
    assert costs == sorted(costs, reverse=True)


def test_three_dimensions_are_fitted_too() -> None:
    shapes = [(1, height, width) for height in (3, 5) for width in (2, 7)]
    limits = Limits(smallest=(1, None, None), largest=(1, 5, 7))
    found = fit_grid(shapes, [1] * 4, (1, 2, 2), elements, limits)
    assert found.boundaries == ((1,), (3, 5), (2, 7))
    assert padding(shapes, [1] * 4, found.boundaries).wasted == 0


def test_too_few_buckets_for_what_has_to_be_there_are_refused() -> None:
    with pytest.raises(ValueError, match="the number of buckets is 1, allowed: 2 or more"):
        fit_within([(1, 1)], [1], 1, elements, WIDE)


def test_a_size_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="a size is -1, allowed: 0 and more"):
        fit_grid([(1, -1)], [1], (2, 1), elements, WIDE)
