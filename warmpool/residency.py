"""What stays in a lane's memory, and what goes when there is no room: decisions only, over bytes, uses and a clock.

An executable is worth what it saves for each byte that it takes. Savings are counted in microseconds: of every batch
that it ran, how much longer the next best would have taken; of every batch that it would have run while it was
evicted, how much longer that batch took. They count half after `HALF_LIFE` batches, so that what is counted is a rate,
and a pause changes nothing. What is worth least a byte goes first, and of equals what was used longest ago: so does
GreedyDual-Size (P. Cao and S. Irani, "Cost-aware WWW proxy caching algorithms", 1997), of which N. Young showed that
nothing that knows no future does better by more than a bound ("On-line file caching", 1998); savings that age stand
here for its credits that are spent.

Two rules keep things from going back and forth:

- Nothing comes back unasked before what it would have saved since it went is `GAIN` times what its load takes, as one
  buys what one has rented for its price (A. Karlin et al., "Competitive snoopy caching", 1988), and is worth `GAIN`
  times what would be lost with all that has to go for it.
- What came because somebody waits for it stays until it ran, and from then on for as long as its load took: so at most
  about half of a lane's time goes into loading, whoever asks for what.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

HALF_LIFE = 256
GAIN = 2.0
LOAD_US = 20_000.0  # what a load is taken to take before there was one
UNUSED_S_MAX = 1.0  # for how long what came for somebody stays who does not wait any more
RUNS_AT_ONCE_MAX = 3  # a batch, and the first runs of what two loaders load


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an executable takes: bytes while it is held, more of them while it runs, and the weights of its version.

    `minimum`: it is of the minimum set, which is pinned while all of it fits.
    """

    version: str
    held_bytes: int
    run_bytes: int
    minimum: bool = False


class Tally:
    """The bytes that a set of executables takes: with the weights that they need, and with room for runs at once."""

    def __init__(self, weights: Mapping[str, int], footprints: Iterable[Footprint] = ()) -> None:
        self._weights = weights
        self._held_bytes = 0
        self._versions: Counter[str] = Counter()
        self._runs: list[int] = []
        for footprint in footprints:
            self.add(footprint)

    @property
    def bytes(self) -> int:
        """All of it, at the worst moment."""
        return self._held_bytes + sum(self._runs[-RUNS_AT_ONCE_MAX:])

    def add(self, footprint: Footprint) -> None:
        """One executable more."""
        self._held_bytes += footprint.held_bytes
        if not self._versions[footprint.version]:
            self._held_bytes += self._weights.get(footprint.version, 0)
        self._versions[footprint.version] += 1
        insort(self._runs, footprint.run_bytes)

    def remove(self, footprint: Footprint) -> None:
        """One less; its weights go with the last of a version."""
        self._held_bytes -= footprint.held_bytes
        self._versions[footprint.version] -= 1
        if not self._versions[footprint.version]:
            self._held_bytes -= self._weights.get(footprint.version, 0)
        del self._runs[bisect_left(self._runs, footprint.run_bytes)]


class _Account:
    """What one executable saved, as it counted at the batch `at`; and `missed_us`, what it would have since it went.

    `instead_us` is what others saved by running what would have run better on this one: they are not needed for that
    once it is there.
    """

    __slots__ = ("at", "awaited", "instead_us", "kept_until_s", "load_us", "missed_us", "saved_us", "used")

    def __init__(self) -> None:
        self.at = 0
        self.saved_us = 0.0
        self.missed_us = 0.0
        self.instead_us: dict[int, float] = {}
        self.used = -1  # the last batch that ran on it
        self.load_us = LOAD_US
        self.awaited = False  # somebody asked for it, and it did not run yet
        self.kept_until_s = -math.inf  # infinite from being asked for to being there

    def age(self, batches: int) -> None:
        """Let everything count as it does now."""
        share = math.exp2((self.at - batches) / HALF_LIFE)
        self.saved_us *= share
        self.instead_us = {number: saved_us * share for number, saved_us in self.instead_us.items()}
        self.at = batches


class Residency:
    """Which executables of a plan are in a lane's memory, or on their way there. Times are of one monotonic clock.

    Attributes:
        bytes_max: The lane's budget, 0 for none.
        tight: Whether all that is planned is more than that.
        held: By number.
        pinned: Those that never go, since there is room for all of them: the minimum sets.
        impossible: Those for which there can be no room, beside what is pinned.
    """

    def __init__(self, bytes_max: int = 0) -> None:
        self.bytes_max = bytes_max
        self.tight = False
        self.held: set[int] = set()
        self.pinned: set[int] = set()
        self.impossible: set[int] = set()
        self._weights: dict[str, int] = {}
        self._footprints: dict[int, Footprint] = {}
        self._accounts: dict[int, _Account] = {}
        self._batches = 0

    @property
    def held_bytes(self) -> int:
        """What is held takes."""
        return self._tally(self.held).bytes

    def needed_bytes(self, number: int) -> int:
        """What one takes with all that is pinned."""
        return self._tally({*self.pinned, number}).bytes

    def plan(self, footprints: Mapping[int, Footprint], weights: Mapping[str, int]) -> None:
        """Executables, in load order, and the weights of their versions that may come to be held."""
        self._footprints |= footprints
        self._weights |= weights
        self._accounts |= {number: _Account() for number in footprints}
        self._pin()

    def admit(self, numbers: Iterable[int]) -> set[int]:
        """Which of these are to be held from now on: the minimum sets, then what else fits. Nothing goes for them."""
        tally, admitted = self._tally(self.held), set[int]()
        for number in sorted(numbers, key=lambda number: not self._footprints[number].minimum):
            tally.add(self._footprints[number])
            if self._fits(tally):
                admitted.add(number)
            else:
                tally.remove(self._footprints[number])
        self.held |= admitted
        return admitted

    def needs(self, version: str) -> bool:
        """Whether anything that is held needs these weights."""
        return any(self._footprints[number].version == version for number in self.held)

    def drop(self, numbers: Iterable[int]) -> None:
        """These are not in memory any more, and may be asked for again."""
        for number in numbers:
            self.held.discard(number)
            self._accounts[number].missed_us = 0.0

    def retire(self, numbers: Iterable[int]) -> None:
        """Forget these for good."""
        for number in numbers:
            self.held.discard(number)
            del self._footprints[number], self._accounts[number]
        self._pin()

    def forget_weights(self, version: str) -> None:
        """Nothing of a version is planned any more."""
        self._weights.pop(version, None)

    # What it is worth

    def used(self, number: int, saved_us: float | None, now_s: float) -> float:
        """A batch begins to run on it, which saves so much, which is returned; None: nothing else could run it."""
        self._batches += 1
        account = self._aged(number)
        saved_us = account.load_us if saved_us is None else saved_us
        account.saved_us += saved_us
        account.used = self._batches
        if account.awaited:
            account.awaited = False
            account.kept_until_s = now_s + account.load_us * 1e-6
        return saved_us

    def missed(self, number: int, saved_us: float, instead: int | None = None, instead_us: float = 0.0) -> None:
        """A batch begins to run on another one, and would have run on this and saved so much.

        Args:
            number: The one that is not there.
            saved_us: By it.
            instead: What the batch runs on, if that is in this lane.
            instead_us: What that one saves by it.
        """
        self._batches += 1
        account = self._aged(number)
        account.saved_us += saved_us
        account.missed_us += saved_us
        if instead is not None:
            account.instead_us[instead] = account.instead_us.get(instead, 0.0) + instead_us

    def loaded(self, number: int, took_us: float, now_s: float) -> None:
        """It is there, after a load that took so long."""
        account = self._accounts[number]
        account.load_us = took_us
        if account.awaited:
            account.kept_until_s = now_s + UNUSED_S_MAX

    # What comes and goes

    def bring(self, number: int, going: Iterable[int], *, asked: bool) -> None:
        """It is to be held from now on, and those that go for it are not; `asked`: somebody waits for it."""
        self.drop(going)
        self.held.add(number)
        account = self._accounts[number]
        account.awaited = asked
        account.kept_until_s = math.inf if asked else -math.inf

    def room_for(self, number: int, busy: Collection[int], now_s: float) -> list[int] | None:
        """What has to go for one that is not held, what is worth least first; None while even that would not do.

        Args:
            number: What is to come.
            busy: What cannot go now: it runs, or is being loaded.
            now_s: The time.
        """
        tally = self._tally({*self.held, number})
        going: list[int] = []
        free = (one for one in self.held - self.pinned if one not in busy)
        for victim in sorted(free, key=self._rank):
            if self._fits(tally):
                break
            if self._accounts[victim].kept_until_s <= now_s:
                tally.remove(self._footprints[victim])
                going.append(victim)
        if not self._fits(tally):
            return None
        for victim in reversed(going[:-1]):  # a large one that went late may have made an early one needless
            tally.add(self._footprints[victim])
            if self._fits(tally):
                going.remove(victim)
            else:
                tally.remove(self._footprints[victim])
        return going

    def paid(self, number: int) -> bool:
        """Whether it was missed for so much that it may come back unasked."""
        return self._accounts[number].missed_us >= GAIN * self._accounts[number].load_us

    def returns(self, number: int, busy: Collection[int], now_s: float) -> list[int] | None:
        """What goes for one that is worth coming back unasked; None if it is not, or there is no room now."""
        going = self.room_for(number, busy, now_s) if self.paid(number) else None
        if going is None:
            return None
        account = self._aged(number)
        lost_us = sum(max(0.0, self._aged(one).saved_us - account.instead_us.get(one, 0.0)) for one in going)
        return going if account.saved_us >= GAIN * lost_us else None

    def kept_until_s(self, now_s: float) -> float:
        """When the next of those that stay for a while may go; infinite if there is none."""
        times_s = (self._accounts[number].kept_until_s for number in self.held)
        return min((time_s for time_s in times_s if time_s > now_s), default=math.inf)

    def _rank(self, number: int) -> tuple[float, int, int]:
        account = self._aged(number)
        return account.saved_us / max(1, self._footprints[number].held_bytes), account.used, -number

    def _aged(self, number: int) -> _Account:
        account = self._accounts[number]
        account.age(self._batches)
        return account

    def _pin(self) -> None:
        """The minimum sets are pinned if all of them fit together; what fits beside them may come."""
        minimum = {number for number, footprint in self._footprints.items() if footprint.minimum}
        self.pinned = minimum if self._fits(self._tally(minimum)) else set()
        self.tight = not self._fits(self._tally(self._footprints))
        others = self._footprints.keys() - self.pinned if self.tight else ()
        self.impossible = {number for number in others if not self._fits(self._tally({*self.pinned, number}))}

    def _tally(self, numbers: Iterable[int]) -> Tally:
        return Tally(self._weights, (self._footprints[number] for number in numbers))

    def _fits(self, tally: Tally) -> bool:
        return not self.bytes_max or tally.bytes <= self.bytes_max
