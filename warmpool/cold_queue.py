"""What waits for no lane yet: parts of requests that nothing warm covers, held for an executable that is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence

from warmpool.batches import Part
from warmpool.errors import NotWarm
from warmpool.fallback import Forecast, refusal, retry_after_s
from warmpool.lanes import LaneProxy

IN_VAIN = "the request was held for an executable that was not warm in time"


class ColdQueue:
    """Parts for which nothing is warm yet, in the order of their arrival; `rows` of them all.

    Attributes:
        forecast: Knows what is being made, None where nothing is.
    """

    def __init__(self) -> None:
        self.forecast: Forecast | None = None
        self.rows = 0
        self._parts: dict[Part, None] = {}

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def check(self, part: Part, lanes: Collection[LaneProxy]) -> None:
        """Raise NotWarm unless a lane may come to cover the part, or what does will be made while it can wait.

        One row is enough: it is cut into as many pieces as have to be.
        """
        if not any(lane.may_cover(part.method, part.need_of_a_row) for lane in lanes):
            left_s = part.deadline_s - asyncio.get_running_loop().time()
            if refused := refusal(part.method, part.need, self._ready_in_s(part), left_s):
                raise refused

    def hold(self, part: Part, lanes: Collection[LaneProxy]) -> None:
        """Let it wait; the first lane that can is told to load what covers it."""
        part.cold = True
        self._parts[part] = None
        self.rows += part.rows
        if not any(lane.want(part.method, part.need) for lane in lanes):
            any(lane.want(part.method, part.need_of_a_row) for lane in lanes)

    def in_vain(self, parts: Sequence[Part]) -> NotWarm | None:
        """What a request is told whose time ran out while a part of it was held; None if none was."""
        held = next((part for part in parts if self._holds(part)), None)
        if held is None:
            return None
        ready_in_s = self._ready_in_s(held)
        return NotWarm(IN_VAIN) if ready_in_s is None else NotWarm(IN_VAIN, retry_after_s(ready_in_s))

    def discard(self, part: Part) -> None:
        """It waits no longer, if it did."""
        if part in self._parts:
            del self._parts[part]
            self.rows -= part.rows

    def clear(self) -> list[Part]:
        """None waits any longer; those that did."""
        parts = list(self._parts)
        self._parts.clear()
        self.rows = 0
        return parts

    def _holds(self, part: Part) -> bool:
        return part in self._parts or any(map(self._holds, part.pieces))

    def _ready_in_s(self, part: Part) -> float | None:
        return self.forecast.ready_in_s(part.method, part.need_of_a_row) if self.forecast else None
