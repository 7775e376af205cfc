"""What an instance says of itself: whether it is ready, why not, and how its parts are."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from warmpool import __version__, messages
from warmpool.catalog import ServedModel
from warmpool.dataplane import DataPlane
from warmpool.lanes import LaneProxy


class Readiness:
    """The readiness of one instance.

    Args:
        dataplane: Has the catalog.
        lanes: The primary one first; they may come later.

    Attributes:
        state: "starting", "serving" or "draining".
        weights_verified: Whether the weights of all models were.
    """

    def __init__(self, dataplane: DataPlane, lanes: Sequence[LaneProxy]) -> None:
        self.state = "starting"
        self.weights_verified = False
        self._dataplane = dataplane
        self._lanes = lanes

    def reasons(self) -> dict[str, str]:
        """Why the instance is not ready, by model ("" for the instance itself); empty when it is.

        A model that cannot be served at all is a problem in the status, and does not take the others out of service.
        """
        catalog = self._dataplane.catalog
        reasons: dict[str, str] = {}
        if self.state == "draining":
            reasons[""] = "the instance is draining"
        elif not self.weights_verified:
            reasons[""] = "the instance is starting"
        elif not catalog.models:
            reasons = dict(catalog.problems) or {"": "no model is published in the store"}
        for name, model in catalog.models.items():
            if not self.model_ready(model):
                primary = self._lanes[0] if self._lanes else None
                known = primary and (primary.life.why_down() or primary.held.why_not(model.manifest.model))
                reasons[name] = known or "its minimum set is not warm"
        return reasons

    def model_ready(self, model: ServedModel) -> bool:
        """Whether the primary lane holds the model's minimum set, warm."""
        return bool(self._lanes) and self._lanes[0].held.holds_minimum(model.manifest.model)

    def status(self, answers: Sequence[messages.Answer | None]) -> dict[str, Any]:
        """What the document of /v1/status says of the front, models and lanes; `answers` are those of the lanes."""
        catalog = self._dataplane.catalog
        reasons = self.reasons()
        return {
            "version": __version__,
            "state": self.state,
            "ready": not reasons,
            "reasons": reasons,
            "problems": catalog.problems,
            "front": {"pid": os.getpid(), "jax_imported": sys.modules.get("jax") is not None},
            "models": {
                name: {
                    "version": model.manifest.version,
                    "ready": self.model_ready(model),
                    "methods": list(model.methods),
                }
                for name, model in catalog.models.items()
            },
            "lanes": [_lane_status(lane, answer) for lane, answer in zip(self._lanes, answers, strict=True)],
        }


def _lane_status(lane: LaneProxy, answer: messages.Answer | None) -> dict[str, Any]:
    held = lane.held
    plan = held.load_plan
    numbers = [*plan.loadables] if plan else []
    return {
        "name": lane.name,
        "pid": lane.pid,
        "state": lane.state,
        "mode": lane.mode,
        "warm": held.warm_count,
        "planned": len(numbers),
        "missing": plan.missing if plan else {},
        "cold": {held.loadable(number).title: reason for number in numbers if (reason := held.trouble(number))},
        "executables": {held.loadable(number).title: held.state(number) for number in numbers},
        "memory": lane.memory.describe(),
        "busy": lane.batch is not None,
        "batches": lane.batches_run,
        "costs": lane.costs.describe(),
        **lane.life.describe(),
        "compiles": answer.compiles if answer else None,
        "resident_bytes": answer.resident_bytes if answer else None,
    }
