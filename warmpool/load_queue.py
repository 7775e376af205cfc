"""What comes into a lane's memory now, what leaves it, and what next. Decisions only: the lane sends the messages.

What is asked for is done first, in the order in which it was asked for; then what is planned, and then what is to come
quietly. Nothing comes while anything leaves, or is to leave before it: what leaves makes the room for it.

One load at a time while the minimum set is not done, since two would slow each other; then as many as the lane has
loaders for; and one at a time what comes quietly, since batches run beside it. What was being loaded when a lane died
is a suspect: the next one loads it alone, and runs nothing beside it; once a lane has died of that too it is given up.
That says nothing of it yet: what kills a lane may be the system, short of memory, or a person. It is deadly if both
crashed, and while they loaded the very same content.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Collection

from warmpool import messages
from warmpool.load_plan import LoadPlan

Come = messages.Weights | messages.Load
Go = messages.Unload | messages.Unmap

DEATHS_MAX = 2
DIED = f"lanes died {DEATHS_MAX} times while they loaded it"
CRASHES = frozenset(-number for number in (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE))
"""Statuses of a process that only what it ran can have ended."""


class LoadQueue:
    """The loads of one lane, over all the processes that it consists of in its life."""

    def __init__(self) -> None:
        self._asked: deque[messages.Work] = deque()
        self._planned: deque[messages.Work] = deque()
        self._quiet: deque[messages.Work] = deque()
        self._in_flight: list[messages.Work] = []
        self._minimum: set[int] = set()
        self._deaths: Counter[str] = Counter()
        self._crashes: Counter[tuple[str, str]] = Counter()  # by key and content
        self._loading: dict[int, str] = {}  # by executable: the content that the lane began to load

    @property
    def alone(self) -> bool:
        """Whether a suspect is loaded or the next to be, beside which nothing is to run."""
        return any(map(self._suspect, self._in_flight or self._waiting()[:1]))

    @property
    def finished(self) -> bool:
        """Whether everything was tried."""
        return not self._next and not self._in_flight

    @property
    def loading(self) -> set[int]:
        """Executables that the lane is loading."""
        return {work.executable for work in self._in_flight if isinstance(work, messages.Load)}

    def refused(self, plan: LoadPlan) -> dict[int, str]:
        """Why some executables of a plan will not be tried, by number."""
        refused = dict(plan.absent)
        for number, loadable in plan.loadables.items():
            if self.gave_up(loadable.message.key):
                refused[number] = DIED
            elif self.gave_up(loadable.message.version):
                refused[number] = f"lanes died {DEATHS_MAX} times while they mapped its weights"
        return refused

    def plan(self, plan: LoadPlan, numbers: Collection[int]) -> None:
        """Load these executables of a plan, in its order, and the weights that they need."""
        versions = {plan.loadables[number].message.version for number in numbers}
        for work in plan.work:
            wanted = work.version in versions if isinstance(work, messages.Weights) else work.executable in numbers
            if wanted and not self.gave_up(_key(work)):
                quiet = plan.quietly and isinstance(work, messages.Load) and not plan.loadables[work.executable].minimum
                (self._quiet if quiet else self._planned).append(work)
        self._minimum |= {number for number in numbers if plan.loadables[number].minimum}

    def add(self, load: messages.Load, *, minimum: bool) -> None:
        """Load one executable more, quietly if the model can do without.

        If lanes died while they loaded it, it is given up again after one death more.
        """
        self._deaths[load.key] = min(self._deaths[load.key], DEATHS_MAX - 1)
        if minimum:
            self._minimum.add(load.executable)
        (self._planned if minimum else self._quiet).append(load)

    def ask(self, work: messages.Work) -> None:
        """Do this before the rest of the plan and after what was asked for before; if it is of the plan it is moved."""
        for waiting in (self._planned, self._quiet):
            if work in waiting:
                waiting.remove(work)
        self._asked.append(work)

    def cancel(self, work: Come) -> bool:
        """Do not do what is not under way yet; whether it was to be done."""
        for waiting in (self._asked, self._planned, self._quiet):
            if work in waiting:
                waiting.remove(work)
                if isinstance(work, messages.Load):
                    self._minimum.discard(work.executable)
                return True
        return False

    def gave_up(self, key: str) -> bool:
        """Whether lanes died so often while they loaded it, or mapped a version's weights, that it is not tried now."""
        return self._deaths[key] >= DEATHS_MAX

    def deadly(self, key: str) -> frozenset[str]:
        """The contents (their SHA-256) under a key that lanes crashed of, again when they did nothing else."""
        return frozenset(content for (of, content), count in self._crashes.items() if of == key and count >= DEATHS_MAX)

    def holds(self, key: str) -> bool:
        """Whether it is loaded now, or will be."""
        return any(_key(work) == key for work in (*self._in_flight, *self._waiting()))

    def brings(self, version: str) -> bool | None:
        """Whether what is under way or was asked for maps weights in the end; None if it does not concern them."""
        found = None
        for work in (*self._in_flight, *self._asked):
            if _maps(work, version) or work == messages.Unmap(version=version):
                found = isinstance(work, messages.Weights)
        return found

    def plans(self, weights: messages.Weights) -> bool:
        """Whether the rest of the plan maps these weights."""
        return any(_maps(work, weights.version) for work in self._planned)

    def unloads(self, executable: int) -> bool:
        """Whether an executable is to go, or is going."""
        return any(work == messages.Unload(executable=executable) for work in (*self._in_flight, *self._asked))

    def take(self, *, running: Collection[int] = ()) -> list[messages.Work]:
        """What to send to the lane now; `running`: the executables that run a batch there, or are to next."""
        taken: list[messages.Work] = []
        while self._may_take(running):
            taken.append(self._next.popleft())
            self._in_flight.append(taken[-1])
        return taken

    def begun(self, message: messages.Loading) -> None:
        """The lane begins to load what it read."""
        self._loading[message.executable] = message.content

    def settle(self, message: messages.Settled) -> None:
        """The lane is done with one of them."""
        match message:
            case messages.Mapped():
                del self._deaths[message.version]
                done = [work for work in self._in_flight if _maps(work, message.version)]
            case messages.Unmapped():
                done = [messages.Unmap(version=message.version)]
            case messages.Unloaded():
                done = [messages.Unload(executable=message.executable)]
            case _:
                done = [work for work in self._in_flight if _loads(work, message.executable)]
                self._minimum.discard(message.executable)
        for work in done:
            self._in_flight.remove(work)
            if isinstance(work, messages.Load):
                del self._deaths[work.key]  # it does not kill: what did was something else
                del self._crashes[work.key, self._loading.pop(work.executable, "")]

    def died(self, status: int | None) -> None:
        """The lane is gone with this status, perhaps because of what it was loading; None: certainly not for that."""
        coming = [work for work in self._in_flight if isinstance(work, Come)]
        if status is not None:
            self._deaths.update(set(map(_key, coming)))  # two loads of one executable are one suspect
        if status in CRASHES:
            loads = [work for work in coming if isinstance(work, messages.Load)]
            self._crashes.update({(one.key, self._loading[one.executable]) for one in loads if self._began(one)})
        self._asked.clear()
        self._planned.clear()
        self._quiet.clear()
        self._in_flight = []
        self._loading.clear()
        self._minimum.clear()

    def _began(self, load: messages.Load) -> bool:
        return load.executable in self._loading

    @property
    def _next(self) -> deque[messages.Work]:
        return self._asked or self._planned or self._quiet

    def _waiting(self) -> list[messages.Work]:
        return [*self._asked, *self._planned, *self._quiet]

    def _suspect(self, work: messages.Work) -> bool:
        return self._deaths[_key(work)] > 0

    def _may_take(self, running: Collection[int]) -> bool:
        if not self._next:
            return False
        following = self._next[0]
        if any(_waits_for(following, work) for work in self._in_flight):
            return False
        if isinstance(following, messages.Unload) and following.executable in running:
            return False
        suspect = any(map(self._suspect, (*self._in_flight, following)))
        one_by_one = bool(self._minimum) or suspect or self._next is self._quiet
        if len(self._in_flight) >= (1 if one_by_one else messages.LOADS_IN_FLIGHT_MAX):
            return False
        return not running or not self.alone


def _key(work: messages.Work) -> str:
    """What names it over all processes of a lane, "" for what goes: no lane is suspected to have died of that."""
    match work:
        case messages.Weights():
            return work.version
        case messages.Load():
            return work.key
        case _:
            return ""


def _maps(work: messages.Work, version: str) -> bool:
    return isinstance(work, messages.Weights) and work.version == version


def _waits_for(following: messages.Work, work: messages.Work) -> bool:
    match following:
        case messages.Unload():
            return _loads(work, following.executable)
        case messages.Unmap():
            return isinstance(work, messages.Unload) or (isinstance(work, Come) and work.version == following.version)
        case _:
            return isinstance(work, Go)


def _loads(work: messages.Work, executable: int) -> bool:
    return isinstance(work, messages.Load) and work.executable == executable
