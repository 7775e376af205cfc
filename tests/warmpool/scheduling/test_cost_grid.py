"""A grid says what trying all candidates says."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.scheduling.world import Kind, Prices
from warmpool.scheduling.cost_grid import CostGrid
from warmpool.selection import Candidate, covers

BATCHES = (1, 2, 4, 8)
SIZES = {"seq": (16, 64, 256), "width": (3, 5)}

costs = st.floats(1, 1000) | st.integers(1, 5).map(float)  # small integers, so that some tie


@st.composite
def plans(draw, *, batch=True):
    """A method and candidates of any subset of a full plan of up to three dimensions."""
    names = draw(st.sampled_from([(), ("seq",), ("seq", "width")]))
    sizes = {"batch": BATCHES} if batch else {}
    sizes |= {name: SIZES[name] for name in names}
    buckets = draw(
        st.lists(
            st.fixed_dictionaries({name: st.sampled_from(of) for name, of in sizes.items()}),
            max_size=14,
            unique_by=lambda bucket: tuple(bucket.values()),
        )
    )
    candidates = [Candidate(number, bucket, draw(costs)) for number, bucket in enumerate(buckets)]
    return Kind(batch="batch" if batch else None), candidates


@dataclass(frozen=True)
class Tried:
    """What trying all candidates finds."""

    candidates: list[Candidate]

    def cheapest(self, need):
        covering = [one for one in self.candidates if covers(one.bucket, need)]
        return min(covering, key=lambda one: (one.cost_us, tuple(one.bucket.values())), default=None)


def need_of(draw, kind, candidates):
    names = candidates[0].bucket if candidates else {"batch": 1, "seq": 1}
    largest = {"batch": 9, "seq": 260, "width": 6}
    return {name: draw(st.integers(1, largest[name])) for name in names}


@given(st.data())
def test_the_cheapest_is_what_trying_all_of_them_finds(data):
    kind, candidates = data.draw(plans() | plans(batch=False))
    grid = CostGrid(kind, candidates, Prices())
    need = need_of(data.draw, kind, candidates)
    rows = need.get("batch", 1)
    shape = grid.shape(need)
    found = None if shape is None else grid.cheapest(rows, shape)
    wanted = Tried(candidates).cheapest(need)
    assert found is wanted
    if shape is not None and rows <= grid.rows_max:
        assert grid.costs_us(shape)[rows] == (wanted.cost_us if wanted else inf)


@given(st.data())
def test_as_many_rows_run_together_as_any_of_them_covers(data):
    kind, candidates = data.draw(plans() | plans(batch=False))
    grid = CostGrid(kind, candidates, Prices())
    need = need_of(data.draw, kind, candidates)
    shape = grid.shape(need)
    covering = [one for one in candidates if covers(one.bucket, need | ({"batch": 1} if "batch" in one.bucket else {}))]
    most = max((one.bucket.get("batch", 1) for one in covering), default=0)
    assert (0 if shape is None else grid.most_rows(shape)) == most


@given(st.data())
def test_the_joined_shape_of_two_is_that_of_what_covers_both(data):
    kind, candidates = data.draw(plans())
    grid = CostGrid(kind, candidates, Prices())
    one, other = need_of(data.draw, kind, candidates), need_of(data.draw, kind, candidates)
    first, second = grid.shape(one), grid.shape(other)
    both = grid.shape({name: max(one[name], other[name]) for name in one})
    if first is not None and second is not None:
        assert grid.joined(first, second) == both


@given(plans())
def test_more_rows_never_cost_less(plan):
    kind, candidates = plan
    grid = CostGrid(kind, candidates, Prices())
    for shape in range(grid.shapes):
        assert grid.costs_us(shape) == sorted(grid.costs_us(shape))


@given(plans())
def test_the_best_number_of_rows_is_the_least_for_which_a_row_costs_least(plan):
    kind, candidates = plan
    grid = CostGrid(kind, candidates, Prices())
    for shape in range(grid.shapes):
        each = [cost / rows for rows, cost in enumerate(grid.costs_us(shape)) if rows]
        if min(each) < inf:  # else nothing covers it
            assert grid.best_rows(shape) == each.index(min(each)) + 1


def test_of_equally_cheap_ones_the_smaller_bucket_is_taken():
    tied = [Candidate(number, {"batch": 8 >> number, "seq": 16}, 5.0) for number in range(3)]
    grid = CostGrid(Kind(), tied, Prices())
    assert grid.cheapest(1, 0) is tied[2]


def test_bounds_and_predictions_are_those_of_the_model_and_decide_instead_of_what_was_published():
    slow, fast = Candidate(0, {"batch": 1}, 1.0), Candidate(1, {"batch": 8}, 2.0)
    grid = CostGrid(Kind(), [slow, fast], Prices({slow.id: 50.0}, spread=1.5))
    assert grid.cheapest(1, 0) is fast
    assert (grid.cost_us(slow), grid.bound_us(slow)) == (50.0, 75.0)


@pytest.mark.parametrize("kind", [Kind(), Kind(batch=None)])
def test_nothing_warm_covers_nothing(kind):
    grid = CostGrid(kind, [], Prices())
    assert (grid.shape({"batch": 1}), grid.rows_max, grid.shapes) == (None, 0, 0)
