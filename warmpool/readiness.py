"""What an instance says of itself: whether it is ready, why not, and how its parts are."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from warmpool import __version__, messages
from warmpool.catalog import ServedModel
from warmpool.dataplane import DataPlane
from warmpool.lanes import LaneProxy
from warmpool.load_plan import LoadPlan
from warmpool.version_progress import holds_minimum, why_not


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
                known = primary and (primary.life.why_down() or why_not(primary.held, model.key))
                reasons[name] = known or "its minimum set is not warm"
        return reasons

    def model_ready(self, model: ServedModel) -> bool:
        """Whether the primary lane holds the model's minimum set, warm."""
        return bool(self._lanes) and holds_minimum(self._lanes[0].held, model.key)

    def status(
        self, answers: Sequence[messages.Answer | None], versions: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """What the document of /v1/status says of the front, models and lanes.

        Args:
            answers: Those of the lanes.
            versions: What there is to say of each model's versions.
        """
        catalog = self._dataplane.catalog
        reasons = self.reasons()
        return {
            "version": __version__,
            "state": self.state,
            "ready": not reasons,
            "reasons": reasons,
            "problems": catalog.problems,
            "front": {"pid": os.getpid(), "jax_imported": sys.modules.get("jax") is not None},
            "models": {name: self._model_status(catalog.models.get(name)) | said for name, said in versions.items()},
            "lanes": [_lane_status(lane, answer) for lane, answer in zip(self._lanes, answers, strict=True)],
        }

    def _model_status(self, model: ServedModel | None) -> dict[str, Any]:
        """Of the version that gets requests; there is none while the first one of a model is loaded."""
        if model is None:
            return {"version": "", "ready": False, "methods": []}
        return {
            "version": model.manifest.version,
            "ready": self.model_ready(model),
            "methods": list(model.methods),
        }


def _lane_status(lane: LaneProxy, answer: messages.Answer | None) -> dict[str, Any]:
    held = lane.held
    plan = held.load_plan
    titles = _titles(plan) if plan else {}
    return {
        "name": lane.name,
        "pid": lane.pid,
        "state": lane.state,
        "mode": lane.mode,
        "warm": held.warm_count,
        "planned": len(titles),
        "missing": plan.missing if plan else {},
        "cold": {title: reason for number, title in titles.items() if (reason := held.trouble(number))},
        "executables": {title: held.state(number) for number, title in titles.items()},
        "memory": lane.memory.describe(),
        "busy": lane.batch is not None,
        "batches": lane.batches_run,
        "costs": lane.costs.describe(),
        **lane.life.describe(),
        "compiles": answer.compiles if answer else None,
        "resident_bytes": answer.resident_bytes if answer else None,
    }


def _titles(plan: LoadPlan) -> dict[int, str]:
    """What the executables are called, by number: with their version where a lane has several of a model."""
    versions = {(loadable.method.model, loadable.message.version) for loadable in plan.loadables.values()}
    models = Counter(model for model, _ in versions)
    return {
        number: f"{one.title} @{one.method.version}" if models[one.method.model] > 1 else one.title
        for number, one in plan.loadables.items()
    }
