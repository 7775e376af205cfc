from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmpool.fitting.grids import Limits
from warmpool.fitting.plan_fit import fit_buckets
from warmpool.fitting.segments import fit_boundaries
from warmpool.fitting.usage import elements, grid_buckets, usage

SEEN = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 30)), min_size=1, max_size=12)
BATCH = Limits(smallest=(1, None), largest=(8, 30))


def overhead(*sizes: Any) -> Any:
    return 20.0 + elements(*sizes) ** 1.5


@settings(deadline=None, max_examples=40)
@given(SEEN, st.integers(2, 7), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 30)), max_size=5))
def test_the_plan_is_as_good_as_any_that_was_named_and_covers_all(
    seen: list[tuple[int, int]], count: int, other: list[tuple[int, int]]
) -> None:
    named = sorted({*other, (1, 30), (8, 30)})
    found = fit_buckets(seen, np.ones(len(seen)), count, overhead, BATCH, also=[named])
    assert len(found.buckets) <= count
    assert {(1, 30), (8, 30)} <= set(found.buckets)
    assert found.cost == pytest.approx(usage(seen, np.ones(len(seen)), found.buckets, overhead).cost)
    if len(named) <= count:
        assert found.cost <= usage(seen, np.ones(len(seen)), named, overhead).cost


def test_a_named_plan_with_too_many_buckets_is_not_taken() -> None:
    every = grid_buckets((tuple(range(1, 9)), tuple(range(1, 31))))
    assert len(fit_buckets([(2, 3), (4, 7)], [1, 1], 3, elements, BATCH, also=[every]).buckets) <= 3


def test_one_dimension_has_the_boundaries_that_fit_it() -> None:
    lengths = np.array([3, 4, 9, 9, 20])
    found = fit_buckets(lengths[:, None], np.ones(5), 3, elements, Limits((None,), (30,)))
    assert found.buckets == tuple((size,) for size in fit_boundaries(lengths, np.ones(5), 3, elements, largest=30))
    assert found.exact


def test_of_two_dimensions_without_a_batch_either_may_have_sizes_of_the_other_for_its_own() -> None:
    """Wide pictures are of one height each; the other way round it takes three buckets more."""
    seen = [(10, 90), (20, 91), (30, 92), (30, 10), (30, 11)]
    limits = Limits((None, None), (30, 92))
    for shapes in (seen, [(width, height) for height, width in seen]):
        turned = shapes is not seen
        found = fit_buckets(shapes, np.ones(5), 5, elements, Limits((None, None), (92, 30)) if turned else limits)
        assert found.cost == sum(height * width for height, width in seen)


def test_a_smallest_size_may_be_that_of_the_second_dimension() -> None:
    seen = [(length, rows) for rows, length in ((1, 5), (3, 9), (8, 30))]
    found = fit_buckets(seen, np.ones(3), 4, elements, Limits((None, 1), (30, 8)))
    assert {(30, 1), (30, 8)} <= set(found.buckets)


def test_three_dimensions_have_a_grid() -> None:
    seen = [(1, 3, 3), (1, 5, 3), (1, 3, 9), (1, 5, 9)]
    found = fit_buckets(seen, np.ones(4), 4, elements, Limits((1, None, None), (1, 5, 9)))
    assert found.buckets == tuple(sorted(seen))
    assert found.exact
