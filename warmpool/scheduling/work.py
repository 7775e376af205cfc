"""What waits and what runs, as scheduling sees it. Times are seconds of one monotonic clock, costs microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from warmpool.selection import Candidate, Sizes


class Method(Protocol):
    """A method, compared by identity. `batch` names the dimension of its rows, None if it has none."""

    @property
    def model(self) -> str: ...
    @property
    def batch(self) -> str | None: ...
    @property
    def mergeable(self) -> bool:
        """Whether rows of different requests may run together."""


class Item(Protocol):
    """Rows that run together, in one batch; compared by identity.

    `need` has the size of every dimension of the method, rows included. Each level of `priority` counts as having come
    `Policy.aging_s` earlier. An item with `runs` was in a batch that failed: it runs alone, so that it takes nobody
    along again.
    """

    @property
    def method(self) -> Method: ...
    @property
    def need(self) -> Sizes: ...
    @property
    def rows(self) -> int: ...
    @property
    def arrived_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def runs(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Group[I: Item]:
    """Items that run together now: on what, how long that is predicted to take, and hardly ever more than."""

    items: list[I]
    candidate: Candidate
    cost_us: float
    bound_us: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why items would not be answered in time, and after how many seconds they might."""

    reason: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Policy:
    """How a lane's queue is run.

    Attributes:
        aging_s: How many seconds of waiting a level of priority is worth.
        gather_s: How long what could run may wait for company that makes its rows cheaper. No promise is broken by it.
    """

    aging_s: float = 1.0
    gather_s: float = 0.0
