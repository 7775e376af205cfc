"""The cheapest way to run what waits: which items go together.

Items in the order of their shapes are cut into runs of neighbours; dynamic programming over the cuts finds the least
predicted total. Where items differ in one dimension besides their rows, and have one row each, no other way of
grouping them is cheaper: what a group costs depends on its size and its largest member alone, and never falls with
either, so that some best partition is consecutive (A. Chakravarty, J. Orlin, U. Rothblum, "A Partitioning Problem with
Additive Objective", Operations Research 30, 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from warmpool.scheduling.cost_grid import CostGrid


def partition(rows: Sequence[int], shapes: Sequence[int], grid: CostGrid) -> list[tuple[int, int]]:
    """Where to cut items into groups so that running them all is predicted to take the least time.

    Args:
        rows: of each item, none more than the grid has for its shape.
        shapes: of each item, ascending.
        grid: of their method.

    Returns:
        First index, and the one after the last, of each group, in order. Of equal totals, that whose last groups
        are the smallest: of one shape, those that came first run in the larger ones.
    """
    count = len(rows)
    least = [0.0] * (count + 1)
    first = [0] * (count + 1)
    rows_max = grid.rows_max
    linear = grid.linear
    for end in range(1, count + 1):
        shape = shapes[end - 1]
        costs = grid.costs_us(shape)
        together = 0
        best, best_start = inf, end - 1
        for start in range(end - 1, -1, -1):
            together += rows[start]
            if together > rows_max:
                break
            if not linear:
                shape = grid.joined(shape, shapes[start])
                costs = grid.costs_us(shape)
            total = least[start] + costs[together]
            if total < best:
                best, best_start = total, start
        least[end], first[end] = best, best_start
    groups = []
    end = count
    while end:
        groups.append((first[end], end))
        end = first[end]
    groups.reverse()
    return groups
