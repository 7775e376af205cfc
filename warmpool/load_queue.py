"""What of a lane's plan is loaded now, and what next. Decisions only: the messages it gives are the lane's to send.

One load at a time while the minimum set is not done, since two would slow each other; then as many as the lane has
loaders for. What was being loaded when a lane died is a suspect: the next one loads it alone, and runs nothing beside
it; once a lane has died of that too it is given up. That says nothing of it yet: what kills a lane may be the system,
short of memory, or a person. It is deadly if both crashed, and while they loaded the very same content.
"""

from __future__ import annotations

import signal
from collections import Counter, deque

from warmpool import messages
from warmpool.load_plan import LoadPlan

Work = messages.Weights | messages.Load

DEATHS_MAX = 2
DIED = f"lanes died {DEATHS_MAX} times while they loaded it"
CRASHES = frozenset(-number for number in (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE))
"""Statuses of a process that only what it ran can have ended."""


class LoadQueue:
    """The loads of one lane, over all the processes that it consists of in its life."""

    def __init__(self) -> None:
        self._work: deque[Work] = deque()
        self._in_flight: list[Work] = []
        self._minimum: set[int] = set()
        self._deaths: Counter[str] = Counter()
        self._crashes: Counter[tuple[str, str]] = Counter()  # by key and content
        self._loading: dict[int, str] = {}  # by executable: the content that the lane began to load

    @property
    def alone(self) -> bool:
        """Whether a suspect is loaded or the next to be, beside which nothing is to run."""
        return any(map(self._suspect, self._in_flight or [*self._work][:1]))

    @property
    def finished(self) -> bool:
        """Whether everything was tried."""
        return not self._work and not self._in_flight

    def begin(self, plan: LoadPlan) -> dict[int, str]:
        """Start over with a plan; why some of its executables will not be tried, by number."""
        self._work.clear()
        self._in_flight = []
        self._loading.clear()
        self._minimum.clear()
        return self.extend(plan)

    def extend(self, plan: LoadPlan) -> dict[int, str]:
        """Load what a further plan has, too; why some of its executables will not be tried, by number."""
        refused = dict(plan.absent)
        for number, loadable in plan.loadables.items():
            if self.gave_up(loadable.message.key):
                refused[number] = DIED
            elif self.gave_up(loadable.message.version):
                refused[number] = f"lanes died {DEATHS_MAX} times while they mapped its weights"
        self._work.extend(work for work in plan.work if not (_executable(work) in refused or self.gave_up(_key(work))))
        self._minimum |= {
            number for number, loadable in plan.loadables.items() if loadable.minimum and number not in refused
        }
        return refused

    def add(self, load: messages.Load, *, minimum: bool) -> None:
        """Load one executable more. If lanes died while they loaded it, it is given up again after one death more."""
        self._deaths[load.key] = min(self._deaths[load.key], DEATHS_MAX - 1)
        if minimum:
            self._minimum.add(load.executable)
        self._work.append(load)

    def gave_up(self, key: str) -> bool:
        """Whether lanes died so often while they loaded it, or mapped a version's weights, that it is not tried now."""
        return self._deaths[key] >= DEATHS_MAX

    def deadly(self, key: str) -> frozenset[str]:
        """The contents (their SHA-256) under a key that lanes crashed of, again when they did nothing else."""
        return frozenset(content for (of, content), count in self._crashes.items() if of == key and count >= DEATHS_MAX)

    def holds(self, key: str) -> bool:
        """Whether it is loaded now, or will be."""
        return any(_key(work) == key for work in (*self._in_flight, *self._work))

    def take(self, *, busy: bool = False) -> list[Work]:
        """What to send to the lane now; `busy`: it runs a batch."""
        taken: list[Work] = []
        while self._work and len(self._in_flight) < self._in_flight_max() and not (busy and self.alone):
            taken.append(self._work.popleft())
            self._in_flight.append(taken[-1])
        return taken

    def begun(self, message: messages.Loading) -> None:
        """The lane begins to load what it read."""
        self._loading[message.executable] = message.content

    def settle(self, message: messages.Warm | messages.Cold | messages.Mapped) -> None:
        """The lane is done with one of them."""
        if isinstance(message, messages.Mapped):
            del self._deaths[message.version]
            self._in_flight = [work for work in self._in_flight if not _maps(work, message.version)]
            return
        for work in self._in_flight:
            if isinstance(work, messages.Load) and work.executable == message.executable:
                del self._deaths[work.key]  # it does not kill: what did was something else
                del self._crashes[work.key, self._loading.pop(work.executable, "")]
        self._in_flight = [work for work in self._in_flight if not _loads(work, message.executable)]
        self._minimum.discard(message.executable)

    def died(self, status: int | None) -> None:
        """The lane is gone with this status, perhaps because of what it was loading; None: certainly not for that."""
        if status is not None:
            self._deaths.update(set(map(_key, self._in_flight)))  # two loads of one executable are one suspect
        if status in CRASHES:
            loads = [work for work in self._in_flight if isinstance(work, messages.Load)]
            self._crashes.update({(one.key, self._loading[one.executable]) for one in loads if self._began(one)})
        self._work.clear()
        self._in_flight = []
        self._loading.clear()

    def _began(self, load: messages.Load) -> bool:
        return load.executable in self._loading

    def _suspect(self, work: Work) -> bool:
        return self._deaths[_key(work)] > 0

    def _in_flight_max(self) -> int:
        suspect = any(map(self._suspect, self._next_and_in_flight()))
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
