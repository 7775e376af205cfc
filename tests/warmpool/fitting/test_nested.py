from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmpool.fitting import nested
from warmpool.fitting.grids import Limits, fit_within
from warmpool.fitting.nested import fit_nested
from warmpool.fitting.segments import Bucket
from warmpool.fitting.usage import elements, grid_buckets, usage

ROWS, LENGTHS = 4, 5
SEEN = st.lists(st.tuples(st.integers(1, ROWS), st.integers(1, LENGTHS), st.integers(0, 4)), min_size=1, max_size=10)
Seen = list[tuple[int, int, int]]


def overhead(rows: Any, length: Any) -> Any:
    return 20.0 + np.asarray(rows, np.float64) * np.asarray(length, np.float64) ** 2


def split(seen: Seen) -> tuple[list[tuple[int, int]], list[int]]:
    return [(rows, length) for rows, length, _ in seen], [weight for _, _, weight in seen]


def ascending(top: int, *fixed: int) -> Iterator[tuple[int, ...]]:
    """All sets of sizes up to the largest that have these."""
    free = [size for size in range(1, top + 1) if size not in fixed]
    for count in range(len(free) + 1):
        for chosen in itertools.combinations(free, count):
            yield tuple(sorted({*chosen, *fixed}))


def every_plan(count: int, smallest: int | None) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
    """All plans: outer sizes, each with inner ones, at most so many buckets in all."""
    fixed = (ROWS,) if smallest is None else (smallest, ROWS)
    for outer in ascending(ROWS, *fixed):
        if smallest is not None and outer[0] < smallest:
            continue
        full = list(ascending(LENGTHS, LENGTHS))
        some = [*full, *ascending(LENGTHS - 1)]
        choices = [full if size in fixed else [one for one in some if one] for size in outer]
        for inner in itertools.product(*choices):
            if sum(map(len, inner)) <= count:
                yield list(zip(outer, inner, strict=True))


def own_segments(seen: Seen, plan: list[tuple[int, tuple[int, ...]]], cost: Any) -> float:
    """What a plan takes, each shape in the outer segment it falls into; infinite if it is too long there."""
    total = 0.0
    for rows, length, weight in seen:
        outer, inner = next((size, lengths) for size, lengths in plan if size >= rows)
        covering = next((size for size in inner if size >= length), None)
        total += weight * float(cost(outer, covering)) if covering else (float("inf") if weight else 0.0)
    return total


def plan_of(buckets: tuple[Bucket, ...]) -> list[tuple[int, tuple[int, ...]]]:
    by_rows: dict[int, list[int]] = {}
    for rows, length in buckets:
        by_rows.setdefault(rows, []).append(length)
    return [(rows, tuple(lengths)) for rows, lengths in sorted(by_rows.items())]


@settings(deadline=None, max_examples=25)
@given(SEEN, st.integers(2, 5), st.sampled_from([None, 1, 2]), st.sampled_from([elements, overhead]))
def test_the_buckets_are_as_good_as_the_best_of_all_such_plans(
    seen: Seen, count: int, smallest: int | None, cost: Any
) -> None:
    found = fit_nested(*split(seen), count, cost, (ROWS, LENGTHS), smallest=smallest)
    assert found.exact
    assert len(found.buckets) <= count
    assert (ROWS, LENGTHS) in found.buckets
    assert smallest is None or (smallest, LENGTHS) in found.buckets
    assert min(rows for rows, _ in found.buckets) >= (smallest or 1)
    best = min(own_segments(seen, plan, cost) for plan in every_plan(count, smallest))
    assert own_segments(seen, plan_of(found.buckets), cost) == pytest.approx(best, rel=1e-12)
    assert usage(*split(seen), found.buckets, cost).cost <= best * (1 + 1e-12)


def traffic(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(3.5, 1.0, count), 1, 256).astype(np.int64)
    rows = np.clip(generator.geometric(np.clip(lengths / 256, 0.05, 1.0)), 1, 32)
    return np.stack([rows, lengths], axis=1), np.ones(count)


@pytest.mark.parametrize("count", [4, 9, 20])
def test_they_are_better_than_the_best_grid_where_long_lengths_come_in_few_rows(count: int) -> None:
    shapes, weights = traffic(400, 1)
    grid = fit_within(shapes, weights, count, overhead, Limits((1, None), (32, 256)))
    found = fit_nested(shapes, weights, count, overhead, (32, 256), smallest=1)
    costs = [usage(shapes, weights, one, overhead).cost for one in (found.buckets, grid_buckets(grid.boundaries))]
    assert costs[0] < 0.97 * costs[1]


def test_more_buckets_are_never_worse() -> None:
    shapes, weights = traffic(300, 2)
    plans = [plan_of(fit_nested(shapes, weights, count, overhead, (32, 256)).buckets) for count in range(1, 12)]
    seen = [(int(rows), int(length), 1) for rows, length in shapes]
    costs = [own_segments(seen, plan, overhead) for plan in plans]
    assert costs == sorted(costs, reverse=True)


def test_thinned_out_sizes_are_almost_as_good_and_are_said_not_to_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, weights = traffic(400, 3)
    exact = fit_nested(shapes, weights, 12, overhead, (32, 256), smallest=1)
    monkeypatch.setattr(nested, "OUTER_MAX", 16)
    monkeypatch.setattr(nested, "INNER_MAX", 48)
    thinned = fit_nested(shapes, weights, 12, overhead, (32, 256), smallest=1)
    assert (exact.exact, thinned.exact) == (True, False)
    costs = [usage(shapes, weights, one.buckets, overhead).cost for one in (exact, thinned)]
    assert costs[0] <= costs[1] <= 1.05 * costs[0]


def test_nothing_seen_leaves_what_has_to_be_there() -> None:
    assert fit_nested([], [], 9, elements, (8, 64), smallest=2).buckets == ((2, 64), (8, 64))
    assert fit_nested([], [], 9, elements, (8, 64)).buckets == ((8, 64),)
    assert fit_nested([], [], 1, elements, (8, 64), smallest=8).buckets == ((8, 64),)


@pytest.mark.parametrize(
    ("shape", "count", "message"),
    [
        ((9, 1), 5, "sizes of dimension 0 go from 9 to 9, allowed: 1 to 8"),
        ((1, 0), 5, "sizes of dimension 1 go from 0 to 0, allowed: 1 to 64"),
        ((1, 1), 1, "the number of buckets is 1, allowed: 2 or more"),
    ],
)
def test_what_is_not_allowed_is_named(shape: tuple[int, int], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_nested([shape], [1], count, elements, (8, 64), smallest=1)
