"""What a process owes an answer to, and for how long it may. Decisions only, with the time as an argument.

Only time in which this process was awake counts: one that was stopped, or throttled together with those it watches, has
heard nothing meanwhile, and they may have had no time to say anything. So from one look to the next a second passes at
most, whatever a clock says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from warmpool import messages
from warmpool.settings import Settings

LOOK_S = 0.5
LOOK_COUNTS_S_MAX = 2 * LOOK_S
RUN_S_MIN = 10.0
RUN_BOUNDS = 20.0

ANSWER, START, RUN = "answer", "start", "run"


class Cause(StrEnum):
    """Why a process ended."""

    REPLACED = "replaced"  # nothing was wrong with it
    RUN_HUNG = "run_hung"
    LOAD_HUNG = "load_hung"
    START_HUNG = "start_hung"
    SILENT = "silent"
    DEVICE_LOST = "device_lost"
    OUT_OF_MEMORY = "out_of_memory"  # again and again
    MISTAKE = "mistake"  # of the front's
    CRASHED = "crashed"  # of a signal that only what it ran can have brought
    KILLED = "killed"  # by the system or a person, or its end was not told
    EXITED = "exited"


class Debt(NamedTuple):
    """Something that is owed: its name, what an end for it is called, what it is, and how long it may take."""

    key: Hashable
    cause: Cause
    what: str
    limit_s: float


class Overdue(NamedTuple):
    """What a process has owed for too long."""

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a process may take, in seconds.

    Attributes:
        run_s_max: For a run, see `run_s`.
        load_s_max: For its start, for a load, and for mapping weights.
        answer_s_max: For an answer while it has nothing else to do.
        ask_every_s: How long it is left alone.
    """

    run_s_max: float = 60.0
    load_s_max: float = 120.0
    answer_s_max: float = 10.0
    ask_every_s: float = 5.0

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those of an instance."""
        return cls(run_s_max=settings.run_s_max, load_s_max=settings.load_s_max)

    def run_s(self, bound_us: float) -> float:
        """For a run that hardly ever takes more than its bound: 20 times that, at least 10 s, at most `run_s_max`."""
        return min(max(RUN_S_MIN, RUN_BOUNDS * bound_us * 1e-6), self.run_s_max)

    @property
    def start(self) -> Debt:
        """What a new process owes."""
        return Debt(START, Cause.START_HUNG, "its start", self.load_s_max)

    @property
    def answer(self) -> Debt:
        """What a process owes that was asked how it is."""
        return Debt(ANSWER, Cause.SILENT, "an answer", self.answer_s_max)

    def debt_of(self, message: messages.FromFront, run_s_max: float | None = None) -> Debt | None:
        """What a lane owes that was told this; `run_s_max`: for its run."""
        match message:
            case messages.Run():
                return Debt(RUN, Cause.RUN_HUNG, "a run", self.run_s_max if run_s_max is None else run_s_max)
            case messages.Ask():
                return self.answer
            case messages.Load() | messages.Unload() | messages.Weights() | messages.Unmap():
                return Debt(_work(message), Cause.LOAD_HUNG, _WORK[type(message)], self.load_s_max)
            case _:
                return None


_WORK = {
    messages.Load: "a load",
    messages.Warm: "a load",
    messages.Cold: "a load",
    messages.Unload: "an unload",
    messages.Unloaded: "an unload",
    messages.Weights: "mapping weights",
    messages.Mapped: "mapping weights",
    messages.Unmap: "unmapping weights",
    messages.Unmapped: "unmapping weights",
}


def paid_by(message: messages.FromLane) -> Hashable:
    """The name of what a lane does not owe any more that said this; None for nothing."""
    match message:
        case messages.Done() | messages.Failed():
            return RUN
        case messages.Answer():
            return ANSWER
        case messages.Hello():
            return START
        case messages.Loading() | messages.Lost():
            return None
        case _:
            return _work(message)


def _work(message: messages.Work | messages.Settled) -> Hashable:
    """What names it in what it is told and in what it says of it."""
    match message:
        case messages.Weights() | messages.Unmap() | messages.Mapped() | messages.Unmapped():
            return _WORK[type(message)], message.version
        case _:
            return _WORK[type(message)], message.executable


class Watchdog:
    """What one process owes.

    One that is idle owes an answer from time to time. One that is busy is given the time that its work may take. With
    everything that it gets done, the time of what is like it, and may have waited behind it, begins anew, and that for
    an answer.

    Args:
        ask_every_s: See `Limits`.
    """

    def __init__(self, ask_every_s: float) -> None:
        self._ask_every_s = ask_every_s
        self._owed: dict[Hashable, deque[Debt]] = {}
        self._due_s: dict[Hashable, float] = {}
        self._awake_s = 0.0
        self._looked_s: float | None = None
        self._last_s = 0.0  # when it owed something new, or paid

    def owes(self, key: Hashable) -> bool:
        """Whether this is owed."""
        return key in self._owed

    def lend(self, debt: Debt, now_s: float) -> None:
        """From now on something is owed, or once what is owed under the same name is paid."""
        self._last_s = self._awake(now_s)
        owed = self._owed.setdefault(debt.key, deque())
        owed.append(debt)
        if len(owed) == 1:
            self._due_s[debt.key] = self._last_s + debt.limit_s

    def paid(self, key: Hashable, now_s: float) -> None:
        """Something is not owed any more, if it was."""
        self._last_s = self._awake(now_s)
        cause = self._owed[key][0].cause if key in self._owed else None
        if cause is not None:
            self._owed[key].popleft()
            if not self._owed[key]:
                del self._owed[key], self._due_s[key]
        for other, (first, *_) in self._owed.items():
            if other == ANSWER or first.cause is cause:
                self._due_s[other] = self._last_s + first.limit_s

    def look(self, now_s: float) -> Overdue | None:
        """What is overdue, if anything is. To be called every `LOOK_S`."""
        self._awake_s, self._looked_s = self._awake(now_s), now_s
        busy = self._owed.keys() - {ANSWER}
        for key, due_s in self._due_s.items():
            if due_s <= self._awake_s and not (busy and key == ANSWER):
                debt = self._owed[key][0]
                return Overdue(debt.cause, f"{debt.what} took longer than {debt.limit_s:g} s")
        return None

    def to_ask(self, now_s: float) -> bool:
        """Whether it is time to ask the process how it is: nothing is owed, and nothing was heard for a while."""
        return not self._owed and self._awake(now_s) - self._last_s >= self._ask_every_s

    def _awake(self, now_s: float) -> float:
        """Seconds that this process was awake until now."""
        since_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        return self._awake_s + min(max(since_s, 0.0), LOOK_COUNTS_S_MAX)
