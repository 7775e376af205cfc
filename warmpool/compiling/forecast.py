"""When a missing executable will be warm: decisions over values, and what is learnt of how long making one takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmpool.compiling.gaps import Gap

LOAD_S = 1.0  # from a finished executable to a warm one
OVERDUE_SHARE = 0.25  # of what a job took so far: what is left of one that takes longer than was thought

_MEAN_GAIN, _SPREAD_GAIN, _SPREADS = 1 / 8, 1 / 4, 2.0


@dataclass(slots=True)
class _Estimate:
    """A mean and how far values are from it, as TCP estimates a round trip (RFC 6298)."""

    mean: float
    spread: float

    def take_in(self, value: float) -> None:
        self.spread += _SPREAD_GAIN * (abs(value - self.mean) - self.spread)
        self.mean += _MEAN_GAIN * (value - self.mean)

    @property
    def bound(self) -> float:
        return self.mean + _SPREADS * self.spread


class CompileTimes:
    """How long making an executable took, by program, in seconds.

    The first one of a job takes longer: it compiles what the others are proved with, too.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, bool], _Estimate] = {}
        self._against_prior: _Estimate | None = None

    def took(self, gap: Gap, seconds: float, *, first: bool) -> None:
        """One was made; `first`: as the first of its job."""
        known = self._of.get((gap.program, first))
        if known is None:
            self._of[gap.program, first] = _Estimate(seconds, seconds / 2)
        else:
            known.take_in(seconds)
        if first:
            ratio = seconds / gap.prior_s
            if self._against_prior is None:
                self._against_prior = _Estimate(ratio, ratio / 2)
            else:
                self._against_prior.take_in(ratio)

    def expected_s(self, gap: Gap, *, first: bool) -> float:
        """What making it hardly takes more than; from the other programs' where none of its own was made."""
        known = self._of.get((gap.program, first)) or self._of.get((gap.program, not first))
        if known:
            return known.bound
        return gap.prior_s * (self._against_prior.bound if self._against_prior else 1.0)


@dataclass(frozen=True, slots=True)
class Due:
    """A gap, and in how many seconds from the start of the first job it will be warm."""

    gap: Gap
    in_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """What will be warm when, in order.

    Attributes:
        due: All gaps in the order in which they are made; in seconds from `since_s`.
        since_s: When what is made first began (monotonic).
        first_s: What that is expected to take until it is warm.
    """

    due: tuple[Due, ...] = ()
    since_s: float = 0.0
    first_s: float = 0.0

    def ready_in_s(self, fits: Callable[[Gap], bool], now_s: float) -> float | None:
        """In how many seconds the first gap that fits will be warm; None if none does."""
        first = next((due for due in self.due if fits(due.gap)), None)
        return self._left_s(first.in_s, now_s) if first else None

    def over_in_s(self, now_s: float) -> float:
        """In how many seconds all is made; 0.0 if nothing is to be."""
        return self._left_s(self.due[-1].in_s, now_s) if self.due else 0.0

    def _left_s(self, in_s: float, now_s: float) -> float:
        """What is left; where the job that runs is late, all after it are."""
        passed_s = now_s - self.since_s
        late_s = max(0.0, passed_s * (1 + OVERDUE_SHARE) - self.first_s)
        return in_s - passed_s + late_s


def scheduled(
    jobs: Sequence[Sequence[Gap]], times: CompileTimes, at_a_time: int, since_s: float, *, begun: bool = False
) -> Schedule:
    """The schedule of jobs that run one after the other. Lanes see minimum sets when they are whole.

    Args:
        jobs: Each the gaps that are closed together, the one that runs first.
        times: How long making one takes.
        at_a_time: How many are compiled at a time.
        since_s: When what is made first began, or begins (monotonic).
        begun: Whether something of the first job was made before.
    """
    due: list[Due] = []
    made_s: list[float] = []
    for job in jobs:
        for index, gap in enumerate(job):
            first = index == 0 and (bool(made_s) or not begun)
            took_s = times.expected_s(gap, first=first) / (1 if first else at_a_time)
            made_s.append((made_s[-1] if made_s else 0.0) + took_s)
        ready = [made_s[-1] if gap.minimum else one_s for gap, one_s in zip(job, made_s[-len(job) :], strict=True)]
        due += [Due(gap, one_s + LOAD_S) for gap, one_s in zip(job, ready, strict=True)]
    return Schedule(tuple(due), since_s, made_s[0] + LOAD_S if made_s else 0.0)
