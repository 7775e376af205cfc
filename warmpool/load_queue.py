"""What of a lane's plan is loaded now, and what next. Decisions only: the messages it gives are the lane's to send.

One load at a time while the minimum set is not done, since two would slow each other; then as many as the lane has
loaders for. What was being loaded when a lane died is loaded alone by the next one, and no more once a lane has died
of that too.
"""

from __future__ import annotations

from collections import Counter, deque

from warmpool import messages
from warmpool.load_plan import LoadPlan

Work = messages.Weights | messages.Load

DEATHS_MAX = 2


class LoadQueue:
    """The loads of one lane, over all the processes that it consists of in its life."""

    def __init__(self) -> None:
        self._work: deque[Work] = deque()
        self._in_flight: list[Work] = []
        self._minimum: set[int] = set()
        self._deaths: Counter[str] = Counter()

    @property
    def finished(self) -> bool:
        """Whether everything was tried."""
        return not self._work and not self._in_flight

    def begin(self, plan: LoadPlan) -> dict[int, str]:
        """Start over with a plan; why some of its executables will not be tried, by number."""
        self._work.clear()
        self._in_flight = []
        self._minimum.clear()
        return self.extend(plan)

    def extend(self, plan: LoadPlan) -> dict[int, str]:
        """Load what a further plan has, too; why some of its executables will not be tried, by number."""
        refused = dict(plan.absent)
        for number, loadable in plan.loadables.items():
            if self.kills(loadable.message.key):
                refused[number] = f"lanes died {DEATHS_MAX} times while they loaded it"
            elif self.kills(loadable.message.version):
                refused[number] = f"lanes died {DEATHS_MAX} times while they mapped its weights"
        self._work.extend(work for work in plan.work if not (_executable(work) in refused or self.kills(_key(work))))
        self._minimum |= {
            number for number, loadable in plan.loadables.items() if loadable.minimum and number not in refused
        }
        return refused

    def add(self, load: messages.Load, *, minimum: bool) -> None:
        """Load one executable more, which may have killed lanes as long as it was another one."""
        del self._deaths[load.key]
        if minimum:
            self._minimum.add(load.executable)
        self._work.append(load)

    def kills(self, key: str) -> bool:
        """Whether lanes died so often of an executable, or of a version's weights, that it is not tried any more."""
        return self._deaths[key] >= DEATHS_MAX

    def take(self) -> list[Work]:
        """What to send to the lane now."""
        taken: list[Work] = []
        while self._work and len(self._in_flight) < self._in_flight_max():
            taken.append(self._work.popleft())
            self._in_flight.append(taken[-1])
        return taken

    def settle(self, message: messages.Warm | messages.Cold | messages.Mapped) -> None:
        """The lane is done with one of them."""
        if isinstance(message, messages.Mapped):
            del self._deaths[message.version]
            self._in_flight = [work for work in self._in_flight if not _maps(work, message.version)]
            return
        for work in self._in_flight:
            if isinstance(work, messages.Load) and work.executable == message.executable:
                del self._deaths[work.key]  # it does not kill: what did was something else
        self._in_flight = [work for work in self._in_flight if not _loads(work, message.executable)]
        self._minimum.discard(message.executable)

    def died(self, *, blamed: bool = True) -> None:
        """The lane is gone, perhaps because of what it was loading; not `blamed`: certainly not because of that."""
        if blamed:
            self._deaths.update(set(map(_key, self._in_flight)))  # two loads of one executable are one suspect
        self._work.clear()
        self._in_flight = []

    def _in_flight_max(self) -> int:
        suspect = any(self._deaths[_key(work)] for work in self._next_and_in_flight())
        return 1 if self._minimum or suspect else messages.LOADS_IN_FLIGHT_MAX

    def _next_and_in_flight(self) -> list[Work]:
        return [*self._in_flight, self._work[0]]


def _key(work: Work) -> str:
    """What names it over all processes of a lane."""
    return work.version if isinstance(work, messages.Weights) else work.key


def _executable(work: Work) -> int | None:
    return work.executable if isinstance(work, messages.Load) else None


def _maps(work: Work, version: str) -> bool:
    return isinstance(work, messages.Weights) and work.version == version


def _loads(work: Work, executable: int) -> bool:
    return isinstance(work, messages.Load) and work.executable == executable
