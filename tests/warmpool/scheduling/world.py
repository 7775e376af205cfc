"""Methods, items and prices for tests of scheduling: everything can be computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from warmpool.scheduling.work import Method
from warmpool.selection import Candidate


@dataclass(eq=False)
class Kind:
    """A method."""

    model: str = "tiny"
    batch: str | None = "batch"
    mergeable: bool = True


@dataclass
class Prices:
    """Predicts what was published, or what `known` says by a candidate's number; bounds are `spread` times that."""

    known: dict[int, float] = field(default_factory=dict)
    spread: float = 1.0
    version: int = 0

    def predicted_us(self, method: Method, candidate: Candidate) -> float:
        return self.known.get(candidate.id, candidate.cost_us)

    def bound_us(self, method: Method, candidate: Candidate) -> float:
        return self.predicted_us(method, candidate) * self.spread


@dataclass(eq=False)
class Waiting:
    """An item."""

    method: Kind
    need: dict[str, int]
    arrived_s: float = 0.0
    deadline_s: float = 1e6
    priority: int = 0
    runs: int = 0

    @property
    def rows(self) -> int:
        return self.need.get(self.method.batch or "", 1)
