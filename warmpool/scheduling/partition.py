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
from typing import Protocol

from warmpool.scheduling.cost_grid import CostGrid

BLOCKS_MAX = 64  # more items than that are put together in blocks first, each of one shape


class Sized(Protocol):
    """What is to be grouped: so many rows of a shape."""

    @property
    def rows(self) -> int: ...
    @property
    def shape(self) -> int: ...


def cheapest_groups[S: Sized](items: Sequence[S], grid: CostGrid) -> list[list[S]]:
    """Items, in the order of their shapes, in the groups that are predicted to take the least time, in that order.

    The least of all ways to cut them, for up to `BLOCKS_MAX`; beyond that, of all that leave blocks of neighbours
    whole. No block has more rows than those with which a row of its shape costs least.
    """
    blocks = _blocks(items, -(-len(items) // BLOCKS_MAX), grid)
    cuts = partition([sum(item.rows for item in block) for block in blocks], [block[0].shape for block in blocks], grid)
    return [[item for block in blocks[start:end] for item in block] for start, end in cuts]


def _blocks[S: Sized](items: Sequence[S], size: int, grid: CostGrid) -> list[list[S]]:
    """Neighbours of one shape, at most `size` of them together."""
    blocks: list[list[S]] = []
    room = rows = 0
    for item in items:
        if room and blocks[-1][0].shape == item.shape and rows + item.rows <= grid.best_rows(item.shape):
            blocks[-1].append(item)
            room -= 1
            rows += item.rows
        else:
            blocks.append([item])
            room, rows = size - 1, item.rows
    return blocks


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
