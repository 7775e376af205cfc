"""What waits for no lane yet: parts of requests that nothing warm covers, held for an executable that is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from math import inf

from warmpool.batches import Part
from warmpool.catalog import ServedMethod
from warmpool.errors import NotWarm
from warmpool.fallback import Forecast, refusal, retry_after_s
from warmpool.lanes import LaneProxy

FORECAST_S = 0.1  # a forecast is good for so long
SHAPES_MAX = 4096  # of which it is remembered what lanes and forecast said
IN_VAIN = "the request was held for an executable that was not warm in time"

Shape = tuple[ServedMethod, tuple[int, ...]]


class ColdQueue:
    """Parts for which nothing is warm yet, in the order of their arrival; `rows` of them all.

    Whenever what is warm changes, it is decided anew for every part. So lanes are asked once for all parts of a shape.

    Attributes:
        forecast: Knows what is being made, None where nothing is.
    """

    def __init__(self) -> None:
        self.forecast: Forecast | None = None
        self.rows = 0
        self._parts: dict[Part, None] = {}
        self._coming: set[Shape] = set()  # which lanes were told to load
        self._foretold: dict[Shape, tuple[float, float]] = {}  # when, and for when: infinite for never

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def hold(self, part: Part, lanes: Collection[LaneProxy]) -> None:
        """Let it wait for what a lane may come to have, or for what will be made in its time.

        What covers one row of it is enough: it is cut into as many pieces as have to be. The first lane that can is
        told to load that. Raises NotWarm.
        """
        shape = part.method, (*part.need.values(),)
        if shape not in self._coming and not self._want(part, shape, lanes):
            now_s = asyncio.get_running_loop().time()
            if refused := refusal(part.method, part.need, self._ready_in_s(part, now_s), part.deadline_s - now_s):
                raise refused
        part.cold = True
        self._parts[part] = None
        self.rows += part.rows

    def in_vain(self, parts: Sequence[Part]) -> NotWarm | None:
        """What a request is told whose time ran out while a part of it was held; None if none was."""
        held = next((part for part in parts if self._holds(part)), None)
        if held is None:
            return None
        ready_in_s = self._ready_in_s(held, asyncio.get_running_loop().time())
        return NotWarm(IN_VAIN) if ready_in_s is None else NotWarm(IN_VAIN, retry_after_s(ready_in_s))

    def discard(self, part: Part) -> None:
        """It waits no longer, if it did."""
        if part in self._parts:
            del self._parts[part]
            self.rows -= part.rows

    def clear(self) -> list[Part]:
        """None waits any longer, and what lanes can come to have may be something else; those that waited."""
        parts = list(self._parts)
        self._parts.clear()
        self._coming.clear()
        self._foretold.clear()
        self.rows = 0
        return parts

    def _want(self, part: Part, shape: Shape, lanes: Collection[LaneProxy]) -> bool:
        """Have it loaded; whether a lane may come to have it."""
        if not any(lane.may_cover(part.method, part.need_of_a_row) for lane in lanes):
            return False
        if not any(lane.want(part.method, part.need) for lane in lanes):
            any(lane.want(part.method, part.need_of_a_row) for lane in lanes)
        if len(self._coming) < SHAPES_MAX:
            self._coming.add(shape)
        return True

    def _holds(self, part: Part) -> bool:
        return part in self._parts or any(map(self._holds, part.pieces))

    def _ready_in_s(self, part: Part, now_s: float) -> float | None:
        if self.forecast is None:
            return None
        shape = part.method, (*part.need_of_a_row.values(),)
        asked_s, ready_s = self._foretold.get(shape, (-inf, inf))
        if now_s - asked_s >= FORECAST_S:
            ready_in_s = self.forecast.ready_in_s(part.method, part.need_of_a_row)
            ready_s = inf if ready_in_s is None else now_s + ready_in_s
            if len(self._foretold) < SHAPES_MAX:
                self._foretold[shape] = now_s, ready_s
        return None if ready_s == inf else max(ready_s - now_s, 0.0)
