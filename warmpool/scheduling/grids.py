"""The cost grids of all methods that something is warm for, with what is predicted now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

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
        return self._of(method)

    def set_warm(self, method: Method, candidates: Sequence[Candidate]) -> None:
        """Say what is warm for a method."""
        self._candidates[method] = candidates
        self._grids.pop(method, None)
        self.longest_us = self._longest_us()

    def forget(self, method: Method) -> None:
        """A method that is gone."""
        for known in (self._grids, self._candidates, self.ran_s):
            known.pop(method, None)
        self.longest_us = self._longest_us()

    def renewed(self) -> bool:
        """Forget all grids if predictions have moved since they were made; whether they had."""
        if self._version == self._costs.version:
            return False
        self._version = self._costs.version
        self._grids.clear()
        self.longest_us = self._longest_us()
        return True

    def rows_max(self, method: Method, need: Sizes) -> int:
        """The most rows of a need (its own rows aside) that run together; 0 where nothing warm covers it."""
        grid = self._of(method)
        shape = grid.shape(need)
        return 0 if shape is None else grid.most_rows(shape)

    def covers(self, method: Method, need: Sizes, rows: int) -> bool:
        """Whether something warm runs it."""
        grid = self._of(method)
        shape = grid.shape(need)
        return shape is not None and grid.cheapest(rows, shape) is not None

    def _of(self, method: Method) -> CostGrid:
        """A method's grid, made when it is asked for: most are forgotten before they are."""
        if (grid := self._grids.get(method)) is None:
            grid = CostGrid(method, self._candidates.get(method, ()), self._costs)
            if method in self._candidates:
                self._grids[method] = grid
        return grid

    def _longest_us(self) -> float:
        predicted_us = self._costs.predicted_us
        return max(
            (predicted_us(method, one) for method, known in self._candidates.items() for one in known), default=0.0
        )
