"""The fallback ladder: by which step a request came to its answer, and what is said to one that nothing warm covers.

    EXACT     one run on the primary lane, and nothing that is planned would have been smaller
    LARGER    one run there, on a larger bucket: a smaller one that covers it is planned, and not warm
    SPLIT     several runs, since it has more rows than the largest warm bucket
    CPU       it ran on another lane than the primary one, which had nothing warm for it
    HELD      it waited for an executable that was on its way
    REFUSED   nothing that covers it would be warm within its deadline

The steps are tried in this order, and each is worse for the caller than the one before. Nothing here waits or compiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, override

from warmpool.errors import NotWarm

if TYPE_CHECKING:
    from warmpool.catalog import ServedMethod
    from warmpool.selection import Sizes

RETRY_S_MIN, RETRY_S_MAX = 1.0, 300.0
RETRY_S_UNKNOWN = 10.0  # where nothing is predicted: what a person has to mend


class Step(StrEnum):
    """See above."""

    EXACT = "exact"
    LARGER = "larger"
    SPLIT = "split"
    CPU = "cpu"
    HELD = "held"
    REFUSED = "refused"


_RANK = {step: rank for rank, step in enumerate(Step)}
FALLEN = frozenset({Step.CPU, Step.HELD, Step.REFUSED})
"""Steps of requests that the warm executables of the primary lane did not cover."""


class Forecast(Protocol):
    """What knows which executables are being made. It is asked in the event loop's thread, and answers in microseconds.

    Whoever implements it calls `Batcher.changed` when something that was to be made will not be, and when what is
    lacking changes.
    """

    def ready_in_s(self, method: ServedMethod, need: Sizes) -> float | None:
        """Seconds until something that covers the need is warm in a lane that has it not yet; None if nothing will."""

    def over_in_s(self) -> float:
        """Seconds until all that is missing will be made, as far as is known; 0.0 if nothing is."""

    def lacking(self, method: ServedMethod) -> Sequence[Sizes]:
        """Buckets of a method that are planned for the primary lane, and that it has not been told of yet."""


class Unknown(Forecast):
    """As long as nobody has found out what will be made: it may be anything, so requests wait for that."""

    @override
    def ready_in_s(self, method: ServedMethod, need: Sizes) -> float | None:
        return 0.0

    @override
    def over_in_s(self) -> float:
        return 0.0

    @override
    def lacking(self, method: ServedMethod) -> Sequence[Sizes]:
        return ()


class StepCounts:
    """How many requests took which step.

    Attributes:
        by_model: Counts by model and step; "" for a model that is not known.
    """

    def __init__(self) -> None:
        self.by_model: Counter[tuple[str, Step]] = Counter()

    @property
    def requests(self) -> int:
        """All of them."""
        return self.by_model.total()

    @property
    def fallen(self) -> int:
        """Those that the warm executables of the primary lane did not cover."""
        return sum(count for (_, step), count in self.by_model.items() if step in FALLEN)

    def add(self, model: str, step: Step) -> None:
        """Count a request."""
        self.by_model[model, step] += 1


def together(steps: Sequence[Step]) -> Step:
    """The step of a request, by those of its parts: the worst of them, and of several at least SPLIT."""
    if len(steps) == 1:
        return steps[0]
    return max((Step.SPLIT, *steps), key=_RANK.__getitem__) if steps else Step.EXACT


def retry_after_s(ready_in_s: float | None) -> float:
    """When to come again for what is predicted to be warm in so many seconds, bounded; None: nothing is predicted."""
    return RETRY_S_UNKNOWN if ready_in_s is None else min(max(ready_in_s, RETRY_S_MIN), RETRY_S_MAX)


def refusal(method: ServedMethod, need: Mapping[str, int], ready_in_s: float | None, left_s: float) -> NotWarm | None:
    """Why a request that nothing warm covers is not held, None if it is.

    Args:
        method: What it asks for.
        need: Its sizes.
        ready_in_s: Seconds until something that covers it is predicted to be warm; None if nothing will be.
        left_s: Seconds that it has.
    """
    if ready_in_s is not None and ready_in_s <= left_s:
        return None
    sizes = ", ".join(f"{name}={size}" for name, size in need.items()) or "it"
    what = f"{method.model}:{method.name} has no executable on this machine that covers {sizes}"
    if ready_in_s is not None:
        what += f"; one is predicted to be ready in {ready_in_s:.1f} s, and the request has {left_s:.1f} s"
    return NotWarm(what, retry_after_s(ready_in_s))
