"""A loop that can be interrupted anywhere: it counts what it runs, and does something else before a chosen one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tests.warmpool.fake_lane import ManualLoop

TURNS_MAX = 1000


class SteppedLoop(ManualLoop):
    """Whenever it runs something every task is suspended at one of its awaits: together, these are all such places.

    Attributes:
        steps: How many things it has run.
        at: Before the thing with this number it calls `meanwhile`.
        complaints: What was reported to it: lost exceptions, failed callbacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.at = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.complaints: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.complaints.append(context))

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(self._step, callback, arguments, context=context)

    def _step(self, callback: Any, arguments: Any) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.meanwhile()
        callback(*arguments)

    def count(self, at: int, meanwhile: Callable[[], None]) -> None:
        """Count from here on."""
        self.steps, self.at, self.meanwhile = 0, at, meanwhile

    def settle(self, first: Callable[[], object] = lambda: None) -> None:
        """Run something, and what follows from it, until nothing is left to be run."""
        self.call_soon(first)
        for _ in range(TURNS_MAX):
            super().call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]
                return
        raise AssertionError("it never rests")


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Every subset of the numbers below `count`, but the empty one."""
    for size in range(1, count + 1):
        yield from itertools.combinations(range(count), size)
