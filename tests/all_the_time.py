"""Callers that ask all the time, while something happens to what they ask."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Self

ENDING_S_MAX = 60.0


class AllTheTime(ABC):
    """Threads that ask again and again, as `with Callers(...) as callers: ...`.

    Args:
        callers: How many.

    Attributes:
        wrong: Errors and answers that should not have been.
        stopping: Is set when they are to end.
        lock: Held while what they share changes.
    """

    def __init__(self, callers: int = 3) -> None:
        self.wrong: list[Any] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self._threads = [threading.Thread(target=self.ask_on, args=(number,)) for number in range(callers)]

    @abstractmethod
    def ask_on(self, number: int) -> None:
        """Ask until `stopping` is set. Each caller has a number."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(ENDING_S_MAX)
