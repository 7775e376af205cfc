"""What it costs to run so many rows of such a shape on what is warm: one table for each method, made to be asked often.

The sizes of the warm buckets divide all needs into classes: needs of one class are covered by the same buckets. A class
of rows and a class of every other dimension (together: a shape) make a cell, which holds the cheapest bucket that
covers it. A cell's cost is therefore never more than that of a larger one, whatever was measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf, prod
from typing import Protocol

from warmpool.scheduling.work import Method
from warmpool.selection import Candidate, Sizes


class Costs(Protocol):
    """What predicts run times: `warmpool.scheduling.cost_model` is one."""

    @property
    def version(self) -> int: ...
    def predicted_us(self, method: Method, candidate: Candidate) -> float: ...
    def bound_us(self, method: Method, candidate: Candidate) -> float: ...


class CostGrid:
    """The cheapest covering bucket for every class of rows and shape of one method.

    Shapes are numbered so that a larger number never means smaller in every dimension; with one dimension besides the
    rows they are in the order of its sizes.
    """

    def __init__(self, method: Method, candidates: Sequence[Candidate], costs: Costs) -> None:
        self._batch = method.batch
        names = [name for name in (candidates[0].bucket if candidates else ()) if name != self._batch]
        self._sizes = {name: sorted({one.bucket[name] for one in candidates}) for name in names}
        self._rows = sorted({one.bucket[self._batch] for one in candidates}) if self._batch else [1]
        self.rows_max = self._rows[-1] if candidates else 0
        self.linear = len(names) <= 1
        self.shapes = prod(map(len, self._sizes.values())) if candidates else 0
        strides = list(accumulate((len(sizes) for sizes in reversed(self._sizes.values())), int.__mul__, initial=1))
        self._strides = dict(zip(self._sizes, reversed(strides[:-1]), strict=True))
        self._axes: tuple[tuple[str, list[int], int], ...] = tuple(
            (name, sizes, self._strides[name]) for name, sizes in self._sizes.items()
        )
        self._cells: list[list[Candidate | None]] = [[None] * len(self._rows) for _ in range(self.shapes)]
        self._predicted = {id(one): costs.predicted_us(method, one) for one in candidates}
        self._bounds = {id(one): costs.bound_us(method, one) for one in candidates}
        for one in candidates:
            rows = bisect_left(self._rows, one.bucket[self._batch]) if self._batch else 0
            self._improve(self._number(one.bucket), rows, one)
        self._spread()
        self._by_rows: dict[int, list[float]] = {}
        self._best_rows: dict[int, int] = {}
        self._joined: dict[tuple[int, int], int] = {}

    def shape(self, need: Sizes) -> int | None:
        """The number of the smallest shape that covers a need, its rows aside; None if the buckets are too small."""
        number = 0
        for name, sizes, stride in self._axes:
            place = bisect_left(sizes, need[name])
            if place == len(sizes):
                return None
            number += place * stride
        return number if self.shapes else None

    def joined(self, one: int, other: int) -> int:
        """The smallest shape that covers two."""
        if self.linear:
            return max(one, other)
        key = (one, other)
        if (found := self._joined.get(key)) is None:
            found = self._joined[key] = sum(
                max(one // stride % len(sizes), other // stride % len(sizes)) * stride
                for _, sizes, stride in self._axes
            )
        return found

    def costs_us(self, shape: int) -> list[float]:
        """Predicted cost by number of rows, from 0 to `rows_max`; infinite where nothing covers that."""
        if (found := self._by_rows.get(shape)) is None:
            cells = self._cells[shape]
            found = self._by_rows[shape] = [
                self._cost(cells[bisect_left(self._rows, rows)]) for rows in range(self.rows_max + 1)
            ]
        return found

    def cheapest(self, rows: int, shape: int) -> Candidate | None:
        """The candidate with the least predicted cost that covers so many rows of a shape, None if there is none."""
        return self._cells[shape][bisect_left(self._rows, rows)] if rows <= self.rows_max else None

    def cost_us(self, candidate: Candidate) -> float:
        """What running a candidate is predicted to take."""
        return self._predicted[id(candidate)]

    def bound_us(self, candidate: Candidate) -> float:
        """What running a candidate hardly ever takes more than."""
        return self._bounds[id(candidate)]

    def most_rows(self, shape: int) -> int:
        """The most rows of a shape that run together, 0 if none do."""
        return max(
            (rows for rows, one in zip(self._rows, self._cells[shape], strict=True) if one is not None), default=0
        )

    def best_rows(self, shape: int) -> int:
        """The number of rows of a shape beyond which a row gets no cheaper."""
        if (found := self._best_rows.get(shape)) is None:  # costs are constant up to each size: a row is cheapest there
            costs = zip(self._rows, map(self._cost, self._cells[shape]), strict=True)
            _, found = min((cost_us / rows, rows) for rows, cost_us in costs)
            self._best_rows[shape] = found
        return found

    def _number(self, bucket: Sizes) -> int:
        return sum(bisect_left(sizes, bucket[name]) * stride for name, sizes, stride in self._axes)

    def _cost(self, candidate: Candidate | None) -> float:
        return inf if candidate is None else self._predicted[id(candidate)]

    def _improve(self, shape: int, rows: int, candidate: Candidate | None) -> None:
        if candidate is None:
            return
        present = self._cells[shape][rows]
        if present is None or self._order(candidate) < self._order(present):
            self._cells[shape][rows] = candidate

    def _order(self, candidate: Candidate) -> tuple[float, tuple[int, ...]]:
        return self._predicted[id(candidate)], tuple(candidate.bucket.values())

    def _spread(self) -> None:
        """Let every cell have what any larger one has, one dimension after the other, from the largest cell down."""
        for shape in range(self.shapes):
            for rows in reversed(range(len(self._rows) - 1)):
                self._improve(shape, rows, self._cells[shape][rows + 1])
        for _, sizes, stride in self._axes:
            for shape in reversed(range(self.shapes)):
                if shape // stride % len(sizes) < len(sizes) - 1:
                    for rows in range(len(self._rows)):
                        self._improve(shape, rows, self._cells[shape + stride][rows])
