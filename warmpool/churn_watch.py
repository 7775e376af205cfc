"""What an instance's churn is concluded from: its lanes, what is being made for them, and which steps requests take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from warmpool.churn import Churn, Seen
from warmpool.dataplane import Answer, DataPlane
from warmpool.fallback import Step, StepCounts
from warmpool.lanes import LaneProxy

LOOK_EVERY_S = 1.0
NOT_WARM = frozenset({503, "UNAVAILABLE"})
"""The statuses of `NotWarm`, over HTTP and gRPC."""


class ChurnWatch:
    """Of one instance.

    Args:
        dataplane: Has the catalog, and the batcher that knows what is being made.
        lanes: The primary one first; they may come later.

    Attributes:
        steps: How many requests took which step.
        churn: As of the last look.
    """

    def __init__(self, dataplane: DataPlane, lanes: Sequence[LaneProxy]) -> None:
        self.steps = StepCounts()
        self.churn = Churn(time.monotonic())
        self._dataplane = dataplane
        self._lanes = lanes
        self._since_ns = time.time_ns()

    async def run(self) -> None:
        """Look again and again, until cancelled. What was held before the first look was a start, and no churn."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, now_s: float) -> None:
        """See what is so now."""
        before = self.churn.state
        self.churn.look(Seen(self._missing(), self._over_in_s(), self.steps.requests, self.steps.fallen), now_s)
        if self.churn.state is not before:
            self._since_ns = time.time_ns()

    def request(self, answer: Answer | None, model: str, status: int | str) -> dict[str, Any]:
        """Count a request by its step, and give the attributes of its trace.

        Args:
            answer: What it got.
            model: The name, and perhaps method, that its caller gave; of them a trace has what the catalog knows.
            status: Its protocol's own.
        """
        known = model if answer is not None else self._known(model)
        said = {
            "warmpool.status": status,
            "warmpool.model": known,
            "warmpool.cold": answer is not None and any(part.cold for part in answer.parts),
            "warmpool.churn": self.churn.state,
        }
        if answer is not None:
            said["warmpool.step"] = step = answer.step
            self.steps.add(answer.method.model, step)
        elif status in NOT_WARM:
            self.steps.add(known.partition(":")[0], Step.REFUSED)
            said["warmpool.step"] = Step.REFUSED
        return said

    def describe(self) -> dict[str, Any]:
        """As the status shows it. Times in seconds, or nanoseconds since the epoch."""
        steady_in_s = self.churn.steady_in_s(time.monotonic())
        return {
            "state": self.churn.state,
            "since_ns": self._since_ns,
            "missing": self.churn.missing,
            "steady_in_s": None if steady_in_s is None else round(steady_in_s, 1),
            "fallen_share": round(self.churn.fallen_share, 4),
        }

    def _known(self, model: str) -> str:
        """What of a name, and perhaps method, is not only its caller's: anybody may ask for anything."""
        name, _, method = model.partition(":")
        catalog = self._dataplane.catalog
        if served := catalog.models.get(name):
            return model if method in served.methods else name
        return name if name in catalog.problems else ""

    def _missing(self) -> int:
        """Executables that are planned and not there. A lane or model that lacks everything counts as one."""
        forecast = self._dataplane.batcher.cold.forecast
        methods = [method for model in self._dataplane.catalog.versions.values() for method in model.methods.values()]
        coming = sum(len(forecast.lacking(method)) for method in methods) if forecast else 0
        return coming + sum(map(_missing_in, self._lanes))

    def _over_in_s(self) -> float | None:
        """What whoever makes executables predicts, if that is what is missing."""
        forecast = self._dataplane.batcher.cold.forecast
        return (forecast.over_in_s() or None) if forecast else None


def _missing_in(lane: LaneProxy) -> int:
    plan = lane.held.load_plan
    if plan is None:
        return 1
    cold = len(lane.held.cold_reasons) + len(plan.missing)
    if lane.state == "warm":  # what is loaded now was left out for want of room
        return cold
    return cold + sum(lane.held.state(number) == "loading" for number in plan.loadables)
