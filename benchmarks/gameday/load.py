"""Callers that ask one question after the other, check every answer, and count that each request got just one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

REFUSED = frozenset({429, 503})  # told when to come again


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got: the HTTP status, 0 for none at all; and if it was served, how, and whether rightly."""

    number: int
    method: str
    status: int
    said: str = ""
    lane: str = ""
    right: bool = True

    @property
    def lost(self) -> bool:
        """Whether its caller got neither an answer nor word when to come again."""
        return self.status != 200 and self.status not in REFUSED


class Load:
    """Callers that ask until the end of the block, which then has every answer.

    Args:
        ask: Sends the request of a number and gives what it got. Called by many threads; what it raises is raised at
            the end of the block.
        callers: How many ask at a time.
        every_s: How long a caller rests after an answer: what compiles beside them is as nice as can be.

    Attributes:
        answers: In the order in which they came.
        every_s: May change meanwhile.
    """

    def __init__(self, ask: Callable[[int], Answer], callers: int = 8, every_s: float = 0.0) -> None:
        self.answers: list[Answer] = []
        self.every_s = every_s
        self._ask = ask
        self._numbers = itertools.count()
        self._sent: list[int] = []
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(callers)
        self._futures: list[Future[None]] = [self._executor.submit(self._ask_on) for _ in range(callers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._executor.shutdown()
        for future in self._futures:
            future.result()

    @property
    def unanswered(self) -> int:
        """How many requests were sent and have not had exactly one answer; 0 after the end, or something is wrong."""
        sent, answered = sorted(self._sent), sorted(answer.number for answer in self.answers)
        return 0 if sent == answered else max(1, abs(len(sent) - len(answered)))

    def served(self, lane: str = "") -> int:
        """How many were answered rightly so far, by a lane if one is named."""
        return sum(answer.status == 200 and answer.right and lane in {"", answer.lane} for answer in self.answers)

    def _ask_on(self) -> None:
        while not self._stopping.is_set():
            number = next(self._numbers)
            self._sent.append(number)
            self.answers.append(self._ask(number))
            self._stopping.wait(self.every_s)
