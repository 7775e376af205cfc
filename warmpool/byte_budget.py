"""How many bytes of requests may be held at once: those that are being received, those that wait, those that run.

Rows are bounded by the queues themselves. Bytes have to be counted earlier, since a body takes memory from its first
byte on, and are given back when the request has its answer.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from warmpool.errors import Overloaded, TooLarge


class ByteBudget:
    """The bytes of all requests of an instance, `bytes_max` at most."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<ByteBudget {self.held_bytes} of {self.bytes_max} bytes held>"

    def hold(self) -> Held:
        """The share of one request, nothing as yet: `with budget.hold() as held: ...`."""
        return Held(self)


class Held:
    """The bytes of one request, given back at the end of its block."""

    __slots__ = ("_budget", "_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.held_bytes -= self._bytes
        self._bytes = 0

    def raise_to(self, size: int) -> None:
        """Hold `size` bytes, if it is less now.

        Raises:
            TooLarge: no request may have as many, however little is held.
            Overloaded: too many are held by others. What this one holds stays as it is.
        """
        budget, more = self._budget, size - self._bytes
        if more <= 0:
            return
        if size > budget.bytes_max:
            raise TooLarge(f"body: {size} bytes, allowed in one request: {budget.bytes_max}")
        if budget.held_bytes + more > budget.bytes_max:
            raise Overloaded(f"requests hold {budget.held_bytes} bytes, {budget.bytes_max} may")
        budget.held_bytes += more
        self._bytes = size
