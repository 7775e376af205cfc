"""What is missing, what of it is under way, and what became of the rest: all that a compile service knows. No I/O.

A job that a worker did not live to end may have been to blame: what was left of it is tried once more, alone and last,
and is a failure if a worker ends at that again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmpool.catalog import ServedMethod
from warmpool.compiling.forecast import LOAD_S, CompileTimes, Schedule, scheduled
from warmpool.compiling.gaps import Gap, Made, Target
from warmpool.compiling.history import History
from warmpool.compiling.order import Ranked, jobs_of
from warmpool.compiling.protocol import Done, Place, Placed
from warmpool.selection import Sizes, covers

DEATHS_MAX = 2
ARRIVING_S_MAX = 10.0  # until lanes have loaded what was made
SHOWN_MAX = 64
UNSEEN = "it is made, and lanes see it once their minimum sets are whole"
NOTHING_DONE = "it is missing, and the worker found nothing to do for it"


@dataclass(frozen=True, slots=True)
class Now:
    """A reading of both clocks in seconds: the monotonic one, and since the epoch."""

    s: float
    epoch_s: float


@dataclass(slots=True)
class Running:
    """The job that runs.

    Attributes:
        number: Its number.
        target: What it adds to.
        left: What of it is still to be made.
        unseen: What was made, and no lane may see before its minimum sets are whole.
        began_s: When it began (monotonic).
        since_s: When what it does now began.
        first: Whether that is its first place.
    """

    number: int
    target: Target
    left: dict[Place, Gap]
    began_s: float
    since_s: float
    unseen: list[Gap] = field(default_factory=list)
    first: bool = True


@dataclass(slots=True)
class _Arriving:
    """What was made, since when lanes may see it (monotonic), and whether its lane was told."""

    gap: Gap
    since_s: float
    told: bool = False


@dataclass(slots=True)
class _Plan:
    """What is missing and due, as the last look found it."""

    jobs: list[list[Gap]] = field(default_factory=list)
    gains_us: dict[str, float] = field(default_factory=dict)
    lacking: dict[tuple[str, str, str], list[Sizes]] = field(default_factory=dict)


class Backlog:
    """Of one instance.

    Args:
        at_a_time: How many executables are compiled at a time.

    Attributes:
        history: What became of what was missing.
        running: The job that runs.
    """

    def __init__(self, at_a_time: int) -> None:
        self.history = History()
        self.running: Running | None = None
        self._at_a_time = at_a_time
        self._times = CompileTimes()
        self._plan = _Plan()
        self._schedule = Schedule()
        self._numbers = 0
        self._deaths: Counter[str] = Counter()  # by key
        self._arriving: dict[tuple[Target, Place], _Arriving] = {}
        self._missing: dict[tuple[Target, Place], Gap] = {}  # as the last look found it

    @property
    def waiting(self) -> list[Gap]:
        """What is to be made after the job that runs, in order."""
        return [gap for job in self._plan.jobs for gap in job]

    # What happens

    def closed_by_others(self, found: Sequence[Ranked], now: Now) -> list[Gap]:
        """What the look before found, and this one does not, though nobody said here that lanes may see it."""
        self._forget_arrived(now.s)
        before, self._missing = self._missing, {gap.identity: gap for gap, _ in found}
        return [gap for one, gap in before.items() if one not in self._missing and one not in self._arriving]

    def take_in(self, found: Sequence[Ranked], now: Now) -> bool:
        """This is missing now, in this order; whether that changes what lanes can be expected to hold."""
        keys = {gap.key for gap, _ in found}
        self.history.keep(keys)
        for key in self._deaths.keys() - keys:
            del self._deaths[key]
        self._forget_arrived(now.s)
        under_way = {*self._arriving}  # in its target, too, what was made may be late
        under_way |= {gap.identity for gap in self._under_way}
        due = [one for one in found if one.gap.identity not in under_way and self.history.may_try(one.gap, now.s)]
        lacking: dict[tuple[str, str, str], list[Sizes]] = {}
        for gap, _ in found:
            arriving = self._arriving.get(gap.identity)
            if not gap.ladder and not gap.told and not (arriving and arriving.told):
                lacking.setdefault((gap.model, gap.version, gap.place.method), []).append(gap.bucket)
        changed = lacking != self._plan.lacking
        jobs = jobs_of(due, self._at_a_time, self._deaths.keys())
        self._plan = _Plan(jobs, {gap.key: gain_us for gap, gain_us in due}, lacking)
        self._reschedule(now)
        return changed

    def begin(self, now: Now) -> list[Gap]:
        """The gaps of the next job, which runs from now on; none if there is none."""
        assert self.running is None
        if not self._plan.jobs:
            return []
        gaps = self._plan.jobs.pop(0)
        self._numbers += 1
        self.running = Running(self._numbers, gaps[0].target, {gap.place: gap for gap in gaps}, now.s, now.s)
        self._reschedule(now)
        return gaps

    def placed(self, message: Placed, now: Now) -> Gap | None:
        """The gap that the worker tells of, perhaps one of a minimum set that had to be made besides; None: of none."""
        running = self.running
        if running is None or message.job != running.number:
            return None
        gap = running.left.pop(message.place, None) or self._take_out(running.target, message.place)
        if gap is None:
            return None
        if message.failure:
            self._fail(gap, message.failure, message.seconds, now, passing=message.passing)
        else:
            self._times.took(gap, now.s - running.since_s, first=running.first)
            self._deaths.pop(gap.key, None)
            self.history.close(gap, message.seconds, now.epoch_s)
            running.unseen.append(gap)
            if message.visible:
                seen = [one for one in running.unseen if one.place.ladder == gap.place.ladder]
                self._arriving |= {one.identity: _Arriving(one, now.s) for one in seen}
                running.unseen = [one for one in running.unseen if one not in seen]
        running.since_s, running.first = now.s, False
        self._reschedule(now)
        return gap

    def told(self, made: Collection[Made]) -> bool:
        """Lanes were told of what was made; whether the primary one lacks less of what is planned by that."""
        changed = False
        for one in self._arriving.values():
            if one.gap.closed not in made:
                continue
            one.told = True
            method = (one.gap.model, one.gap.version, one.gap.place.method)
            lacking = self._plan.lacking.get(method, [])
            if not one.gap.ladder and one.gap.bucket in lacking:
                lacking.remove(one.gap.bucket)
                changed = True
            if not lacking:
                self._plan.lacking.pop(method, None)
        return changed

    def over(self, message: Done, now: Now) -> list[Gap]:
        """A job is over; the gaps that failed with it."""
        running = self.running
        if running is None or message.job != running.number:
            return []
        self.running = None
        left = list(running.left.values())
        for gap in left:
            if message.failure:
                self._fail(gap, message.failure, now.s - running.began_s, now, passing=message.passing)
            else:
                self.history.rest(gap, NOTHING_DONE, now.s)  # others made it, if it is not missing any more
        for gap in running.unseen:
            self.history.rest(gap, UNSEEN, now.s)  # or it would be asked for again and again
        self._reschedule(now)
        return left if message.failure else []

    def ended(self, reason: str, now: Now) -> list[Gap]:
        """The worker is gone; the gaps that failed with it."""
        running, self.running = self.running, None
        failed = []
        for gap in running.left.values() if running else ():
            self._deaths[gap.key] += 1
            if self._deaths[gap.key] >= DEATHS_MAX:
                del self._deaths[gap.key]
                self._fail(gap, f"{DEATHS_MAX} compile workers ended while they made it: {reason}", 0.0, now)
                failed.append(gap)
            else:
                self._plan.jobs.append([gap])
        self._reschedule(now)
        return failed

    # What is so

    def ready_in_s(self, method: ServedMethod, need: Sizes, now_s: float) -> float | None:
        """In how many seconds the first executable that covers rows of a need will be warm; None if none is coming."""
        shape = {name: size for name, size in need.items() if name != method.batch}

        def fits(gap: Gap) -> bool:
            of = (gap.model, gap.version, gap.place.method)
            return of == (method.model, method.version, method.name) and covers(gap.bucket, shape)

        if any(map(fits, self._arrivals(now_s))):
            return LOAD_S
        unseen = self.running.unseen if self.running else ()
        sets = {(gap.target, gap.place.ladder) for gap in unseen if fits(gap)}
        return self._schedule.ready_in_s(
            lambda gap: fits(gap) or (gap.minimum and (gap.target, gap.place.ladder) in sets), now_s
        )

    def over_in_s(self, now_s: float) -> float:
        """In how many seconds all that is due will be made, by what is known; 0.0 if nothing is."""
        return self._schedule.over_in_s(now_s)

    def lacking(self, method: ServedMethod) -> Sequence[Sizes]:
        """Buckets of a method that are planned for the primary lane, and that it has not been told of."""
        return self._plan.lacking.get((method.model, method.version, method.name), ())

    def makes(self, model: str, version: str, now_s: float) -> bool:
        """Whether something of a version is under way, will be, or was made a moment ago, for the primary lane."""
        gaps = [*self._arrivals(now_s), *self._under_way, *self.waiting]
        return any((gap.model, gap.version) == (model, version) and not gap.ladder for gap in gaps)

    def describe(self, now_s: float) -> dict[str, Any]:
        """As the status shows it."""
        running, waiting = self.running, self.waiting
        under_way = running.left.values() if running else ()
        for_s = round(now_s - running.began_s, 3) if running else 0.0
        return {
            "running": [{"title": gap.title, "version": gap.version, "for_s": for_s} for gap in under_way],
            "waiting": len(waiting),
            "queue": [self._described(gap, now_s) for gap in waiting[:SHOWN_MAX]],
            "over_in_s": round(self.over_in_s(now_s), 3),
            **self.history.describe(),
        }

    @property
    def _under_way(self) -> list[Gap]:
        """What the job that runs makes, or made where no lane may see it yet."""
        return [*self.running.left.values(), *self.running.unseen] if self.running else []

    def _arrivals(self, now_s: float) -> list[Gap]:
        return [one.gap for one in self._arriving.values() if now_s - one.since_s < ARRIVING_S_MAX]

    def _forget_arrived(self, now_s: float) -> None:
        arriving = self._arriving.items()
        self._arriving = {what: one for what, one in arriving if now_s - one.since_s < ARRIVING_S_MAX}

    def _take_out(self, target: Target, place: Place) -> Gap | None:
        """A gap that waits, and does so no more."""
        found = next((gap for gap in self.waiting if gap.identity == (target, place)), None)
        if found:
            jobs = ([gap for gap in job if gap is not found] for job in self._plan.jobs)
            self._plan.jobs = [job for job in jobs if job]
        return found

    def _described(self, gap: Gap, now_s: float) -> dict[str, Any]:
        ready_in_s = self._schedule.ready_in_s(lambda one: one is gap, now_s)
        return {
            "title": gap.title,
            "version": gap.version,
            "gain_us": round(self._plan.gains_us.get(gap.key, 0.0), 3),
            "ready_in_s": None if ready_in_s is None else round(ready_in_s, 3),
        }

    def _fail(self, gap: Gap, reason: str, seconds: float, now: Now, *, passing: bool = False) -> None:
        self.history.fail(gap, reason, seconds, now.epoch_s, now.s, passing=passing)

    def _reschedule(self, now: Now) -> None:
        running = self.running
        jobs = [list(running.left.values())] if running and running.left else []
        since_s = running.since_s if running else now.s
        begun = bool(running and jobs and not running.first)
        self._schedule = scheduled([*jobs, *self._plan.jobs], self._times, self._at_a_time, since_s, begun=begun)
