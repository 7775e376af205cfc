"""What comes back into a lane's memory, and what makes room for it. Decisions only, with the time as an argument.

What is asked for, because nothing warm covers a request, comes as soon as there can be room; what would only be faster
comes when it is worth that (see `warmpool.residency`). Neither waits for XLA: both are loads.

An executable for which there was no room after all, when it was loaded or ran, is marked, and so are those of its
method that are at least as large: they are not used for `MARKED_S`, or until the next process. Then they may come back
like any other that went.

A lane whose runs find no room again and again, whatever is not used any more, has lost its memory to something else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Set

from warmpool.catalog import ServedMethod
from warmpool.holdings import Holdings, Mark
from warmpool.load_plan import Loadable
from warmpool.scheduling.cost_model import CostModel
from warmpool.selection import Sizes

MARKED_S = 60.0
SHORTAGES_MAX = 3
SHORTAGES_S = 30.0


class LaneMemory:
    """The memory of one lane.

    Args:
        held: What lies in it.
        costs: What batches take on the lane.

    Attributes:
        evictions: How many executables went because there was no room.
        reloads: How many came though they had been left out, or had gone.
        shortages: How often the device had no room for a load or a run.
    """

    def __init__(self, held: Holdings, costs: CostModel) -> None:
        self.evictions = 0
        self.reloads = 0
        self.shortages = 0
        self._held = held
        self._costs = costs
        self._runs_short_s: deque[float] = deque(maxlen=SHORTAGES_MAX)
        self._asked: dict[int, None] = {}  # in this order
        self._missed: dict[int, None] = {}  # whose return is paid for, by batches that would have run on them

    @property
    def evicted(self) -> int:
        """How many executables are left out for want of room, until they are needed."""
        plan = self._held.load_plan
        return sum(self._held.state(number) == "evicted" for number in plan.loadables) if plan else 0

    def describe(self) -> dict[str, int]:
        """For a status document. `bytes_max` is 0 where there is no limit."""
        return {
            "bytes_max": self._held.bytes_max,
            "bytes": self._held.residency.held_bytes,
            "evicted": self.evicted,
            "evictions": self.evictions,
            "reloads": self.reloads,
            "shortages": self.shortages,
        }

    def ask(self, method: ServedMethod, need: Sizes) -> bool:
        """Have the cheapest executable loaded that covers a need, unless one is warm, on its way or asked for.

        Returns:
            Whether there is, or will be, one that covers it.
        """
        covering = [*self._held.covering(method, need)]
        there = self._held.residency.held | self._asked.keys()
        if covering and not any(one.candidate.id in there for one in covering):
            self._asked[min(covering, key=self._cost_us).candidate.id] = None
        return bool(covering)

    def ask_for_minimum(self, numbers: Iterable[int]) -> None:
        """Have those loaded that always have room, whether anybody waits for them or not."""
        residency = self._held.residency
        self._asked |= dict.fromkeys(number for number in numbers if number in residency.pinned - residency.held)

    @property
    def undecided(self) -> bool:
        """Whether anything is to come, if there can be room when nothing runs."""
        return bool(self._asked or self._missed)

    @property
    def tight(self) -> bool:
        """Whether there is less room than all that is planned would take."""
        return self._held.residency.tight

    def runs(self, number: int, need: Sizes, waiting_rows: int, now_s: float) -> None:
        """A batch of this need begins to run on an executable; so many rows could have run with it on a larger one."""
        if not self.tight:
            return
        warm_us, gone_us = self._times_us(self._held.loadable(number).method, need, waiting_rows)
        cost_us = warm_us.pop(number)
        saved_us = max(0.0, min(warm_us.values()) - cost_us) if warm_us else None
        saved_us = self._held.residency.used(number, saved_us, now_s)
        self._miss(gone_us, cost_us, number, saved_us)

    def passes(self, method: ServedMethod, need: Sizes, cost_us: float) -> None:
        """A batch is to run on another lane at this cost."""
        if self.tight:
            warm_us, gone_us = self._times_us(method, need, 0)
            if not warm_us:
                self._miss(gone_us, cost_us, None, 0.0)

    def make_room(self, running: Set[int], now_s: float) -> bool:
        """Let come what was asked for, and what is worth it; whether anything went for that.

        Args:
            running: The executables that run a batch, or are to next.
            now_s: The time.
        """
        self._unmark(now_s)
        before = self.evictions
        for number in [*self._asked, *self._missed]:
            if self._held.knows(number) and self._held.state(number) == "evicted":
                self._let_come(number, running, now_s)
            else:
                self._asked.pop(number, None)
        if not running:
            self._missed.clear()  # those that did not come are not worth it yet
        return self.evictions > before

    def short(self, short: Loadable, reason: str, now_s: float) -> None:
        """The device had no room for this one, and so has none for those that are at least as large."""
        self.shortages += 1
        for loadable in [*self._held.covering(short.method, short.candidate.bucket)]:
            self._held.mark(loadable.candidate.id, Mark(reason, now_s + MARKED_S))

    def ran_short(self, now_s: float) -> str:
        """The device had no room for a run; why nothing is to run here any more, "" if that was not often so."""
        self._runs_short_s.append(now_s)
        often = len(self._runs_short_s) == SHORTAGES_MAX and now_s - self._runs_short_s[0] <= SHORTAGES_S
        return f"it ran out of memory {SHORTAGES_MAX} times in {SHORTAGES_S:g} s" if often else ""

    def again_s(self, now_s: float) -> float:
        """When to make room again, if nothing happens before; infinite for never."""
        marks_s = (mark.until_s for mark in self._held.marked.values())
        kept_s = self._held.residency.kept_until_s(now_s) if self._asked else math.inf
        return min(kept_s, *marks_s) if self._held.marked else kept_s

    def forget(self) -> None:
        """The process is gone."""
        self._runs_short_s.clear()
        self._asked.clear()
        self._missed.clear()

    def _miss(self, times_us: Mapping[int, float], cost_us: float, instead: int | None, instead_us: float) -> None:
        """Count what a batch would save on the best of those that went, see `Residency.missed`."""
        better = min(times_us, key=times_us.__getitem__, default=None)
        if better is not None and times_us[better] < cost_us:
            self._held.residency.missed(better, cost_us - times_us[better], instead, instead_us)
            if self._held.residency.paid(better):
                self._missed[better] = None

    def _times_us(
        self, method: ServedMethod, need: Sizes, waiting_rows: int
    ) -> tuple[dict[int, float], dict[int, float]]:
        """What the rows take on each executable that is warm, and on each that went.

        That is in several runs of a small one; on a large one, their share of a run with others that wait.
        """
        rows = need[method.batch] if method.batch else 1
        warm, held = self._held.warm[method], self._held.residency.held
        warm_us: dict[int, float] = {}
        gone_us: dict[int, float] = {}
        for loadable in self._held.covering(method, need if method.batch is None else {**need, method.batch: 1}):
            number = loadable.candidate.id
            if number not in held or loadable.candidate in warm:
                most = loadable.candidate.bucket[method.batch] if method.batch else 1
                runs = math.ceil(rows / most) if most < rows else rows / min(most, rows + waiting_rows)
                (warm_us if number in held else gone_us)[number] = runs * self._cost_us(loadable)
        return warm_us, gone_us

    def _let_come(self, number: int, running: Set[int], now_s: float) -> None:
        asked = number in self._asked
        busy = self._held.loads.loading | running
        weigh = self._held.residency.room_for if asked else self._held.residency.returns
        going = weigh(number, busy, now_s)
        if going is not None:
            self._asked.pop(number, None)
            self._held.bring(number, going, asked=asked)
            self.reloads += 1
            self.evictions += len(going)

    def _unmark(self, now_s: float) -> None:
        over = [number for number, mark in self._held.marked.items() if mark.until_s <= now_s]
        for number in over:
            del self._held.marked[number]
        self.ask_for_minimum(over)

    def _cost_us(self, loadable: Loadable) -> float:
        return self._costs.predicted_us(loadable.method, loadable.candidate)
