"""Lanes follow what they are to hold: versions that come, and the bucket plans of those that they have.

What is new is loaded beside what they have, and only then goes what is planned no more. A plan changes in the store,
where `warmpool buckets fit` puts a target whose executables are there already, proved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from warmpool.catalog import ServedMethod
from warmpool.lanes import LaneProxy
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.plan_changes import given_up
from warmpool.store_calls import StoreCalls

log = logging.getLogger(__name__)

LOOK_EVERY_S = 20.0
LOOKS_MAX = 3  # one after the other
_READY = ("warm", "evicted")  # what gave its place to something else can be loaded again


class Models(Protocol):
    """The models of an instance."""

    def change(
        self, lane: LaneProxy, having: Mapping[int, Loadable], further: LoadPlan, only: Collection[str] | None = None
    ) -> dict[ServedMethod, tuple[int, ...]]:
        """Add to a further plan what a lane is to have besides; by method the numbers of what is planned no more.

        In a thread. Raises StoreUnavailable.
        """

    def part_with_gone(self, lane: LaneProxy) -> None:
        """Let a lane part with the versions that have gone while they were planned for it."""


class PlanFollowing:
    """Of the lanes of one instance.

    Args:
        lanes: They may come later.
        models: What they serve.
        calls: Of the store.
        notice: Told when something is cold that was to be warm.
    """

    def __init__(
        self, lanes: Sequence[LaneProxy], models: Models, calls: StoreCalls, notice: Callable[[], None]
    ) -> None:
        self._lanes = lanes
        self._models = models
        self._calls = calls
        self._notice = notice

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for lane in self._lanes:
                await self.look(lane)

    async def look(self, lane: LaneProxy, only: Collection[str] | None = None) -> bool:
        """Let a lane take up what is new, and give up what is planned no more once all else of its method is ready.

        False: nothing was done, since the lane has not said what it is, the store is away, or all changes meanwhile.

        Args:
            lane: The lane.
            only: The versions (by key) that are looked at; None for all.
        """
        for _ in range(LOOKS_MAX):
            if (plan := lane.held.load_plan) is None:
                return False
            having = dict(plan.loadables)
            further = LoadPlan(end=plan.end, weights=dict(plan.weights), missing=dict(plan.missing), quietly=True)
            asked = f"plans of {lane.name}"
            gone = await self._calls.ask(asked, partial(self._models.change, lane, having, further, only))
            if gone is None:
                return False
            if lane.held.load_plan is plan and plan.loadables.keys() == having.keys():
                self._follow(lane, plan, further, gone)
                return True
            # Another process, or other executables have come meanwhile.
        return False

    def _follow(
        self, lane: LaneProxy, plan: LoadPlan, further: LoadPlan, gone: Mapping[ServedMethod, tuple[int, ...]]
    ) -> None:
        plan.missing = further.missing
        if further.work or further.loadables:
            _tell("lane is to hold more", lane, further.loadables.values())
            lane.extend(further)
            if further.absent:
                self._notice()
        self._models.part_with_gone(lane)
        numbers = given_up(gone, plan.loadables, lambda number: lane.held.state(number) in _READY)
        if numbers:
            _tell("executables are planned no more", lane, (plan.loadables[number] for number in numbers))
            lane.retire(numbers)


def _tell(what: str, lane: LaneProxy, loadables: Iterable[Loadable]) -> None:
    log.info(what, extra={"lane": lane.name, "executables": [one.title for one in loadables]})
