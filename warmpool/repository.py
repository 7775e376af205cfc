"""The versions that an instance has or is to have, and how each is; models that it is told to let go, or to load again.

So the model repository extension of the Open Inference Protocol sees it, and so does the status document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from warmpool.catalog import ServedModel
from warmpool.dataplane import DataPlane
from warmpool.errors import NotFound, NotWarm
from warmpool.lanes import LaneProxy
from warmpool.manifest import Serving
from warmpool.version_following import VersionFollowing
from warmpool.version_progress import may_hold, why_not

STATES = {"serving": "READY", "warm": "READY", "loading": "LOADING", "retiring": "UNLOADING"}  # others: UNAVAILABLE


class Repository:
    """Of one instance.

    Args:
        following: Knows what the store says is served.
        dataplane: Knows what gets requests.
        lanes: The primary one first; they may come later.

    Attributes:
        why_not_made: Why what a version lacks cannot be made here, "" if nothing is known to fail.
    """

    def __init__(self, following: VersionFollowing, dataplane: DataPlane, lanes: Sequence[LaneProxy]) -> None:
        self._following = following
        self._dataplane = dataplane
        self._lanes = lanes
        self.why_not_made: Callable[[ServedModel], str] = lambda _: ""

    def state(self, key: str) -> tuple[str, str]:
        """How a version ("model/version") is, and why.

        One of "loading", "warm", "serving", "retiring", "refused" and "unloaded".
        """
        name, _, version = key.partition("/")
        catalog, following = self._dataplane.catalog, self._following
        if key in catalog.retiring:
            return "retiring", ""
        if name in following.unloaded:
            return "unloaded", "it was told to"
        model = catalog.versions.get(key)
        if model is None:
            return ("refused", following.refused[key]) if key in following.refused else ("loading", "")
        stable = catalog.models.get(name) is model
        if following.is_warm(model) if stable else version in self._dataplane.warm.get(name, ()):
            serving = following.serving.get(name) or Serving(stable=version)
            return "serving" if stable or (serving.canary == version and serving.share > 0) else "warm", ""
        reason = why_not(self._lanes[0].held, key) if self._lanes else ""
        reason = (reason and self.why_not_made(model)) or reason  # the cause, where it is known
        if stable:
            held = not self._lanes or any(may_hold(lane.held, key) for lane in self._lanes)
            return ("serving" if held else "refused"), reason
        return ("refused" if reason else "loading"), reason

    def describe(self) -> dict[str, dict[str, Any]]:
        """By model: which version is stable, canary with which share, and previous in the store, and how each is."""
        found: dict[str, dict[str, Any]] = {}
        for name, keys in self._keys().items():
            said = self._following.serving.get(name) or Serving(stable="")
            fields = {field: getattr(said, field) for field in ("stable", "canary", "share", "previous")}
            states = {key.partition("/")[2]: self.state(key) for key in keys}
            versions = {version: {"state": state, "reason": reason} for version, (state, reason) in states.items()}
            found[name] = fields | {"versions": versions}
        return found

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Every version as the protocol has it; `ready`: only those that can answer now."""
        found = []
        for name, keys in self._keys().items():
            for key in keys:
                state, reason = self.state(key)
                told = STATES.get(state, "UNAVAILABLE")
                if told == "READY" or not ready:
                    found.append({"name": name, "version": key.partition("/")[2], "state": told, "reason": reason})
        return found

    def unload(self, name: str) -> None:
        """Serve a model no longer, until it is loaded again. What waits or runs is still answered. Raises NotFound.

        What was refused of it is tried again then.
        """
        self._require(name)
        following = self._following
        following.unloaded.add(name)
        following.refused = {key: why for key, why in following.refused.items() if not key.startswith(f"{name}/")}
        self._dataplane.catalog.problems.pop(name, None)
        following.settle()

    async def load(self, name: str, wait_s_max: float) -> None:
        """Serve what the store says of a model, and wait until it is so.

        Raises:
            NotFound: The store says nothing of it.
            NotWarm: It is refused, or is not warm within this time.
        """
        following = self._following
        following.unloaded.discard(name)
        looks = following.looks
        following.changed()
        try:
            async with asyncio.timeout(wait_s_max):
                while not (following.looks > looks + 1 and self._is_settled(name)):
                    if following.looks == looks + 1:  # it may have been read before that was asked for
                        following.changed()
                    await following.settled.wait()
        except TimeoutError:
            raise NotWarm(f"model {name!r} is not warm yet; see /v1/status") from None
        state, reason = self.state(f"{name}/{following.serving[name].stable}")
        if state != "serving":
            raise NotWarm(f"model {name!r} cannot be served: {reason}")

    def _is_settled(self, name: str) -> bool:
        """Whether the stable version of a model is warm, or it is known why not all of it can be. Raises NotFound."""
        self._require(name)
        if name not in self._following.serving:
            problem = self._dataplane.catalog.problems.get(name, "what the store says of it cannot be read")
            raise NotWarm(f"model {name!r} cannot be served: {problem}")
        key = f"{name}/{self._following.serving[name].stable}"
        state, reason = self.state(key)
        if state != "serving":
            return state == "refused"
        return bool(reason) or self._following.is_warm(self._dataplane.catalog.versions[key])

    def _require(self, name: str) -> None:
        known = {*self._following.serving, *self._dataplane.catalog.models, *self._dataplane.catalog.problems}
        if name not in known:
            raise NotFound(f"model {name[:64]!r} is not in the store; it has: {', '.join(sorted(known)) or 'none'}")

    def _keys(self) -> dict[str, list[str]]:
        """The versions (by key) of each model."""
        own = self._dataplane.catalog.versions
        found = {}
        for name in sorted({*self._following.serving, *(model.manifest.model for model in own.values())}):
            serving = self._following.serving.get(name)
            keys = [f"{name}/{version}" for version in serving.versions] if serving else []
            keys += [key for key, model in own.items() if model.manifest.model == name]
            found[name] = list(dict.fromkeys(keys))
        return found
