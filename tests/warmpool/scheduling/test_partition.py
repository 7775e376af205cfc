"""No way of grouping what waits is cheaper."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.scheduling.test_cost_grid import plans
from tests.warmpool.scheduling.world import Kind, Prices
from warmpool.scheduling.cost_grid import CostGrid
from warmpool.scheduling.partition import BLOCKS_MAX, cheapest_groups, partition
from warmpool.selection import Candidate


def price(group, grid):
    """What a group of (shape, rows) costs."""
    rows, shape = sum(one[1] for one in group), group[0][0]
    for other, _ in group:
        shape = grid.joined(shape, other)
    return grid.costs_us(shape)[rows] if rows <= grid.rows_max else float("inf")


def total(groups, grid):
    return sum(price(group, grid) for group in groups)


def cuts(items):
    """Every way to cut a sequence into runs of neighbours."""
    for places in itertools.product([False, True], repeat=len(items) - 1):
        groups = [[items[0]]]
        for item, cut in zip(items[1:], places, strict=True):
            if cut:
                groups.append([item])
            else:
                groups[-1].append(item)
        yield groups


def partitions(items):
    """Every way to put items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(rest):
        yield [[first], *groups]
        for place in range(len(groups)):
            yield [*groups[:place], [first, *groups[place]], *groups[place + 1 :]]


@st.composite
def queues(draw, *, rows, sizes_max):
    """A grid, and items that it covers, in the order of their shapes: (shape, rows) each."""
    kind, candidates = draw(plans().filter(lambda plan: plan[1] and len(plan[1][0].bucket) <= sizes_max))
    grid = CostGrid(kind, candidates, Prices())
    fitting = [
        (shape, count)
        for shape in range(grid.shapes)
        for count in rows
        if count <= grid.rows_max and grid.cheapest(count, shape)
    ]
    items = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=7))
    return grid, sorted(items, key=lambda item: item[0])


def found(grid, items):
    places = partition([rows for _, rows in items], [shape for shape, _ in items], grid)
    assert [index for start, end in places for index in range(start, end)] == list(range(len(items)))
    return total([items[start:end] for start, end in places], grid)


@given(queues(rows=range(1, 9), sizes_max=3))
def test_no_way_to_cut_the_queue_is_cheaper(queue):
    grid, items = queue
    assert found(grid, items) == pytest.approx(min(total(groups, grid) for groups in cuts(items)))


@given(queues(rows=[1], sizes_max=2))
def test_no_way_to_group_single_rows_of_one_length_each_is_cheaper(queue):
    grid, items = queue
    assert found(grid, items) == pytest.approx(min(total(groups, grid) for groups in partitions(items)))


def test_short_ones_do_not_pay_for_a_long_one():
    """A short row beside a long one is padded to its length: 300 for all three, 15 + 100 apart."""
    plan = [
        Candidate(number, {"batch": batch, "seq": seq}, cost)
        for number, (batch, seq, cost) in enumerate([(1, 16, 10.0), (2, 16, 15.0), (1, 256, 100.0), (4, 256, 300.0)])
    ]
    grid = CostGrid(Kind(), plan, Prices())
    assert partition([1, 1, 1], [0, 0, 1], grid) == [(0, 2), (2, 3)]


def test_of_equally_cheap_ways_that_with_the_smallest_last_groups_is_taken():
    grid = CostGrid(Kind(), [Candidate(0, {"batch": 1}, 5.0), Candidate(1, {"batch": 2}, 10.0)], Prices())
    assert partition([1, 1], [0, 0], grid) == [(0, 1), (1, 2)]
    grid = CostGrid(Kind(), [Candidate(0, {"batch": 1}, 5.0), Candidate(1, {"batch": 2}, 5.0)], Prices())
    assert partition([1, 1, 1], [0, 0, 0], grid) == [(0, 2), (2, 3)]


def test_an_empty_queue_has_no_groups():
    assert partition([], [], CostGrid(Kind(), [], Prices())) == []


@dataclass(eq=False)
class Row:
    shape: int
    rows: int = 1


def test_more_than_are_cut_one_by_one_still_fill_the_largest_bucket():
    grid = CostGrid(Kind(), [Candidate(0, {"batch": 1}, 10.0), Candidate(1, {"batch": 256}, 10.0)], Prices())
    rows = [Row(0) for _ in range(256)]
    assert cheapest_groups(rows, grid) == [rows]


def test_however_many_they_are_rows_whose_sharing_would_cost_more_run_apart():
    grid = CostGrid(Kind(), [Candidate(0, {"batch": 1}, 10.0), Candidate(1, {"batch": 2}, 30.0)], Prices())
    rows = [Row(0) for _ in range(3 * BLOCKS_MAX)]
    assert cheapest_groups(rows, grid) == [[row] for row in rows]


@given(queues(rows=range(1, 9), sizes_max=3), st.integers(1, 40))
def test_every_item_is_in_one_group_that_something_covers_and_few_are_cut_exactly(queue, times):
    grid, items = queue
    rows = [Row(shape, count) for shape, count in items for _ in range(times)]
    groups = cheapest_groups(rows, grid)
    assert [row for group in groups for row in group] == rows
    cost = total([[(row.shape, row.rows) for row in group] for group in groups], grid)
    assert cost < float("inf")
    if len(rows) <= BLOCKS_MAX:
        assert cost == pytest.approx(found(grid, [(row.shape, row.rows) for row in rows]))
    else:
        assert cost <= sum(grid.costs_us(row.shape)[row.rows] for row in rows) * 1.5
