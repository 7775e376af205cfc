"""A game day: one fault after the other, in drawn order, while callers ask all the time.

A fault is brought about, and seen by the instance; it ends, and all has to be whole within its bound. What callers got
meanwhile counts for the fault: a game day is lost by one answer that did not come, or was wrong.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from benchmarks.gameday.faults import FAULTS, SEEN_S_MAX
from benchmarks.gameday.instance import until
from benchmarks.gameday.load import REFUSED, Answer, Load
from benchmarks.gameday.place import Place
from benchmarks.gameday.questions import ask
from benchmarks.gameday.readiness import Readiness

CALLERS, EVERY_S = 4, 0.02  # what compiles beside them is as nice as can be, and has to get a turn
ANSWERS_MIN = 50  # after each fault, and before the end of one that lasts
ANSWERS_S_MAX = 60.0
REFUSALS_KEPT_MAX = 5


@dataclass(slots=True)
class Outcome:
    """What became of a kind of fault, over all times that it was brought about.

    Attributes:
        recovery_s_max: Its bound.
        injected: How often.
        seen: How often the instance noticed.
        recovered_s: Until all was whole, each time that it was within the bound: from its end, where it has one, else
            from when it was brought about.
        right: Answers, each as the reference has it.
        refused: Callers who were told when to come again.
        lost: Callers who got neither.
        wrong: Answers that are not right.
        contradictions: Looks at which what the instance said of its readiness was not so.
        refusals: What some of those were told.
        troubles: What went wrong, in words.
    """

    recovery_s_max: float
    injected: int = 0
    seen: int = 0
    recovered_s: list[float] = field(default_factory=list)
    right: int = 0
    refused: int = 0
    lost: int = 0
    wrong: int = 0
    contradictions: int = 0
    refusals: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was lost or wrong, and it was seen, and over in time, each time."""
        whole = self.injected == self.seen == len(self.recovered_s)
        return whole and not (self.lost or self.wrong or self.contradictions)

    def count(self, answers: Sequence[Answer]) -> None:
        """Add what callers got."""
        for answer in answers:
            self.right += answer.status == 200 and answer.right
            self.wrong += not answer.right
            self.lost += answer.lost
            if answer.status in REFUSED:
                self.refused += 1
                if len(self.refusals) < REFUSALS_KEPT_MAX:
                    self.refusals.append(f"{answer.status} {answer.said}")
        bad = [answer for answer in answers if answer.lost or not answer.right]
        self.troubles += [f"{one.method}: {one.status} {one.said}" if one.lost else f"wrong: {one}" for one in bad[:3]]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "recovered_s": [round(seconds, 2) for seconds in self.recovered_s], "good": self.good}


class Game:
    """One game day in a place.

    Args:
        place: Whole.
        seed: Of what is drawn.
        say: Told of each fault that is over.
    """

    def __init__(self, place: Place, seed: int, say: Callable[[str], None]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._place = place
        self._draw = random.Random(seed)
        self._say = say
        self._answers = 0  # that were counted
        self._contradictions = 0

    def play(self, faults: Sequence[str], seconds: float) -> None:
        """Each of these faults once, and then more of them until the time has passed; what has begun is ended."""
        until_s = time.monotonic() + seconds
        with Readiness(self._place.instance, self._place.shelf.minimum) as readiness:
            with Load(partial(ask, self._place.instance.port), CALLERS, EVERY_S) as load:
                for turn in _turns(faults, self._draw):
                    if time.monotonic() > until_s and len(self.outcomes) == len(set(faults)):
                        break
                    self._bring(turn, load, readiness)
            last = next(reversed(self.outcomes.values()))
            self._count(last, load, readiness)
            last.lost += load.unanswered

    def _bring(self, name: str, load: Load, readiness: Readiness) -> None:
        fault = FAULTS[name]
        outcome = self.outcomes.pop(name, None) or Outcome(fault.recovery_s_max)
        self.outcomes[name] = outcome  # the last one is last
        outcome.injected += 1
        told = f"{name}: "
        try:
            begin_s = time.monotonic()
            injected = fault.inject(self._place, self._draw)
            until(injected.seen, SEEN_S_MAX, "the instance noticed it")
            outcome.seen += 1
            told += f"seen after {time.monotonic() - begin_s:.1f} s, "
            if injected.end:
                self._await_answers(load)
                begin_s = time.monotonic()
                injected.end()
            until(self._place.whole, fault.recovery_s_max, "all was whole again")
            outcome.recovered_s.append(time.monotonic() - begin_s)
            told += f"recovered in {outcome.recovered_s[-1]:.1f} s"
            self._await_answers(load)
        except (TimeoutError, OSError, subprocess.SubprocessError) as error:
            outcome.troubles.append(f"{error}")
            told += f"{error}"
        self._say(f"{told}; {self._count(outcome, load, readiness)} answers")

    def _count(self, outcome: Outcome, load: Load, readiness: Readiness) -> int:
        """What came since the last time is this fault's; how many answers."""
        answers, contradictions = load.answers[self._answers :], len(readiness.contradictions)
        outcome.count(answers)
        outcome.contradictions += contradictions - self._contradictions
        self._answers += len(answers)
        self._contradictions = contradictions
        return len(answers)

    def _await_answers(self, load: Load) -> None:
        wanted = load.served() + ANSWERS_MIN
        until(lambda: load.served() >= wanted, ANSWERS_S_MAX, f"{ANSWERS_MIN} more were answered")


def _turns(faults: Sequence[str], draw: random.Random) -> Iterator[str]:
    """All of them in some order, and again in another one, for ever."""
    while True:
        yield from draw.sample(sorted(faults), len(faults))
