"""The cost grids of all methods that something is warm for, with what is predicted now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf

from warmpool.scheduling.cost_grid import CostGrid, Costs
from warmpool.scheduling.work import Method
from warmpool.selection import Candidate, Sizes


class Grids:
    """A grid for each method.

    Args:
        costs: Predicts run times.

    Attributes:
        longest_us: What the longest run of all is predicted to take.
        ran_s: By method, when each candidate ran last.
    """

    def __init__(self, costs: Costs) -> None:
        self.longest_us = 0.0
        self.ran_s: defaultdict[Method, dict[Candidate, float]] = defaultdict(dict)
        self._costs = costs
        self._version = costs.version
        self._grids: dict[Method, CostGrid] = {}
        self._candidates: dict[Method, Sequence[Candidate]] = {}

    def __getitem__(self, method: Method) -> CostGrid:
        return self._grids[method]

    def set_warm(self, method: Method, candidates: Sequence[Candidate]) -> None:
        """Say what is warm for a method."""
        self._candidates[method] = candidates
        self._grids[method] = CostGrid(method, candidates, self._costs)
        self.longest_us = max(grid.longest_us for grid in self._grids.values())

    def forget(self, method: Method) -> None:
        """A method that is gone."""
        for known in (self._grids, self._candidates, self.ran_s):
            known.pop(method, None)
        self.longest_us = max((grid.longest_us for grid in self._grids.values()), default=0.0)

    def renewed(self) -> bool:
        """Make all grids anew if predictions have moved since they were made; whether they had."""
        if self._version == self._costs.version:
            return False
        self._version = self._costs.version
        for method, candidates in self._candidates.items():
            self.set_warm(method, candidates)
        return True

    def rows_max(self, method: Method, need: Sizes) -> int:
        """The most rows of a need (its own rows aside) that run together; 0 where nothing warm covers it."""
        grid = self._grids.get(method)
        shape = grid.shape(need) if grid else None
        if grid is None or shape is None:
            return 0
        costs_us = grid.costs_us(shape)
        return max((rows for rows in range(1, grid.rows_max + 1) if costs_us[rows] < inf), default=0)

    def covers(self, method: Method, need: Sizes, rows: int) -> bool:
        """Whether something warm runs it."""
        grid = self._grids.get(method)
        shape = grid.shape(need) if grid else None
        return grid is not None and shape is not None and grid.cheapest(rows, shape) is not None
