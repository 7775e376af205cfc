"""An instance follows what its store says is served: versions come, are warmed fully, get requests, and go.

1. `serving.json` names a version: it is read, all of it has to be there, and its weights are verified, in a thread.
2. Lanes load it beside what they have (`warmpool.plan_following`).
3. Once all that is planned of it was tried, and its minimum sets are warm, it may get requests: those that name it, the
   share of a canary; or all of them where it is the new stable version, whose predecessor serves until then.
4. It is named no more: no request gets it from then on, and when nothing of it waits or runs, lanes let go of it.

What cannot be taken up is refused, in the same words each time, and tried again, less and less often. What is stable
here serves on meanwhile, and so does everything while the store is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from cache.signed_store import SignedStore
from warmpool.backoff import backoff_s
from warmpool.catalog import ServedModel
from warmpool.dataplane import DataPlane
from warmpool.lanes import LaneProxy
from warmpool.manifest import Serving
from warmpool.plan_following import PlanFollowing
from warmpool.served_models import ServedModels
from warmpool.serving_records import ServingRecords
from warmpool.store_calls import StoreCalls
from warmpool.version_progress import fully_warm
from warmpool.version_routing import Routing

log = logging.getLogger(__name__)

LOOK_NEAR_S, LOOK_FAR_S = 0.5, 5.0  # between looks at a folder, and at a bucket
LOOK_S_MIN = 0.05  # whoever says how often that the store has changed
TRY_AGAIN_S_MAX = 60.0
SETTLE_S = 0.05  # what lanes tell in so short a time is looked at together


@dataclass(slots=True)
class _Rest:
    """How often something was tried, when last, and until when it is not tried again (of the loop's clock)."""

    tries: int = 0
    tried_s: float = -math.inf
    until_s: float = -math.inf


class VersionFollowing:
    """Of one instance.

    Args:
        store: Says what is served.
        dataplane: Has the catalog, and is told who gets requests.
        lanes: The primary one first; they may come later.
        models: Reads versions.
        plans: Lets lanes load them.
        calls: Of the store.

    Attributes:
        serving: By model, what the store says.
        unloaded: Models that are not to be served here, whatever the store says.
        refused: By key, why a version cannot be taken up.
        looks: How often it has read what the store says; a look at one that is away is none.
        settled: Is set, and cleared, each time that it was decided anew who gets requests.
    """

    def __init__(
        self,
        store: SignedStore,
        dataplane: DataPlane,
        lanes: Sequence[LaneProxy],
        models: ServedModels,
        plans: PlanFollowing,
        calls: StoreCalls,
    ) -> None:
        self.serving: dict[str, Serving] = {}
        self.unloaded: set[str] = set()
        self.refused: dict[str, str] = {}
        self.looks = 0
        self.settled = asyncio.Event()
        self.overrule: Callable[[str, Serving], Serving] = lambda _, serving: serving  # may take from what is served
        self.awaited: Callable[[ServedModel], bool] = lambda _: False  # whether more of a version is being made
        self._records = ServingRecords(store)
        self._audit = store.audit
        self._dataplane = dataplane
        self._lanes = lanes
        self._models = models
        self._plans = plans
        self._calls = calls
        self._news = asyncio.Event()
        self._told: set[str] = set()  # models of which more is known here than what is being read
        self._under_way: set[str] = set()
        self._rests: dict[str, _Rest] = {}
        self._soon: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        every_s = LOOK_FAR_S if self._models.far else LOOK_NEAR_S
        async with asyncio.TaskGroup() as group:
            while True:
                await self.look(group)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), every_s)
                self._news.clear()
                await asyncio.sleep(LOOK_S_MIN)

    def changed(self) -> None:
        """The store may say something else by now, or what was refused may be there: look at once.

        However often that is said, what was refused is not tried more often than the store is looked at otherwise.
        """
        for rest in self._rests.values():
            rest.tries, rest.until_s = 0, min(rest.until_s, rest.tried_s + LOOK_NEAR_S)
        self._news.set()

    def follow(self, name: str, serving: Serving) -> None:
        """This is what the store says of a model: it was just written."""
        self._told.add(name)
        self._take_over(name, serving)
        self.settle()
        self._news.set()

    def moved(self) -> None:
        """Lanes have more or less than before; a new process is to be told soon of what is not stable."""
        if any(self._unplanned(lane) and lane.name not in self._under_way for lane in self._lanes):
            self._news.set()
        if self._dataplane.catalog.others and self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(SETTLE_S, self.settle)

    def is_warm(self, model: ServedModel) -> bool:
        """Whether a version may get requests, see `fully_warm`."""
        return bool(self._lanes) and fully_warm(model, [lane.held for lane in self._lanes])

    # What is to be

    async def look(self, group: asyncio.TaskGroup) -> None:
        """See what is served, and begin what follows from it."""
        self._told.clear()
        read = await self._calls.ask("what is served", self._records.read)
        for name, found in (read or {}).items():
            if name not in self._told:
                self._take_over(name, found)
        wanted = self._wanted()
        self.refused = {key: reason for key, reason in self.refused.items() if key in wanted}
        self._rests = {what: rest for what, rest in self._rests.items() if what.rpartition(" ")[2] in wanted}
        for key in wanted - self._dataplane.catalog.versions.keys():
            if self._begins(key):
                group.create_task(self._take_up(key))
        for lane in self._lanes:
            lacking = self._lacking(lane)
            if lacking and lane.name not in self._under_way:
                group.create_task(self._extend(lane, lacking))
        self.looks += read is not None
        self.settle()

    def _take_over(self, name: str, found: Serving | str) -> None:
        catalog = self._dataplane.catalog
        if isinstance(found, str):
            if name not in catalog.models:
                catalog.problems[name] = found
            return
        found = self.overrule(name, found)
        catalog.named[name] = found.stable
        if self.serving.get(name) != found:
            log.info("what is served", extra={"model": name, **msgspec.to_builtins(found)})  # as it is written
            self.serving[name] = found
            for version in found.versions:
                self._rests.pop(f"{name}/{version}", None)

    def _wanted(self) -> set[str]:
        """The versions (by key) that the store names, and that are to be served here."""
        return {
            f"{name}/{version}"
            for name, serving in self.serving.items()
            if name not in self.unloaded
            for version in serving.versions
        }

    def _begins(self, what: str) -> bool:
        """Whether to try something now, which is not under way, and was not tried in vain a short time ago."""
        now_s = asyncio.get_running_loop().time()
        rest = self._rests.setdefault(what, _Rest())
        if what in self._under_way or now_s < rest.until_s:
            return False
        rest.tries += 1
        rest.tried_s = now_s
        rest.until_s = now_s + backoff_s(rest.tries, LOOK_NEAR_S, TRY_AGAIN_S_MAX)
        return True

    async def _take_up(self, key: str) -> None:
        """Let lanes have a version, if it can be read."""
        name, _, version = key.partition("/")
        self._under_way.add(key)
        try:
            found = await self._calls.ask(f"version {key}", partial(self._models.take_up, name, version))
        finally:
            self._under_way.discard(key)
        catalog = self._dataplane.catalog
        if key not in self._wanted():
            return
        if isinstance(found, str):
            if self.refused.get(key) != found:
                self._audit.record("refuse", model=name, version=version, reason=found)
            self.refused[key] = found
            if name not in catalog.models and name in self.serving and self.serving[name].stable == version:
                catalog.problems[name] = found
        elif found is not None and key not in catalog.versions:
            self.refused.pop(key, None)
            if name not in catalog.models and self.serving[name].stable == version:
                catalog.problems.pop(name, None)
            catalog.others[key] = found
            self._news.set()

    def _lacking(self, lane: LaneProxy) -> set[str]:
        """The versions that a lane is to be asked to load now."""
        if (plan := lane.held.load_plan) is None:
            return set()
        missing = (self._dataplane.catalog.versions.keys() & plan.missing.keys()) - plan.weights.keys()
        return self._unplanned(lane) | {key for key in missing if self._begins(f"{lane.name} {key}")}

    def _unplanned(self, lane: LaneProxy) -> set[str]:
        """The versions that a lane has not been told of."""
        plan = lane.held.load_plan
        return self._dataplane.catalog.versions.keys() - {*plan.weights, *plan.missing} if plan else set()

    async def _extend(self, lane: LaneProxy, lacking: set[str]) -> None:
        self._under_way.add(lane.name)
        try:
            await self._plans.look(lane, lacking)
        finally:
            self._under_way.discard(lane.name)

    # What is so

    def settle(self) -> None:
        """Decide anew who gets requests, and who goes."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._retire()
        for name, serving in self.serving.items():
            if name not in self.unloaded:
                self._admit(name, serving)
        self._retire()
        self.settled.set()
        self.settled.clear()

    def _admit(self, name: str, serving: Serving) -> None:
        catalog, dataplane = self._dataplane.catalog, self._dataplane
        stable = catalog.others.get(f"{name}/{serving.stable}")
        if stable is not None and self._may_get(stable):
            before = catalog.models.get(name)
            if before is not None:
                catalog.others[before.key] = before
            del catalog.others[stable.key]
            catalog.models[name] = stable
            log.info("version takes over", extra={"model": stable.key, "before": before.key if before else ""})
        current = catalog.models.get(name)
        if current is not None:
            routing = dataplane.routing.setdefault(name, Routing(current.manifest.version))
            routing.follow(msgspec.structs.replace(serving, stable=current.manifest.version))
            own = [one for one in catalog.versions.values() if one.manifest.model == name]
            dataplane.warm[name] = frozenset(one.manifest.version for one in own if self._may_get(one))

    def _may_get(self, model: ServedModel) -> bool:
        if model.key in self._dataplane.catalog.retiring or not self.is_warm(model):
            return False
        name, version = model.manifest.model, model.manifest.version
        return version in self._dataplane.warm.get(name, ()) or not self.awaited(model)

    def _retire(self) -> None:
        """Let go what is named no more, once nothing of it waits or runs; what is named again stays."""
        catalog, wanted = self._dataplane.catalog, self._wanted()
        gone = [model for key, model in catalog.others.items() if key not in {*wanted, *catalog.retiring}]
        gone += [model for name, model in catalog.models.items() if name in self.unloaded]
        for model in gone:
            log.info("version is retired", extra={"model": model.key})
            self._dataplane.withdraw(model)
        busy = {method for lane in self._lanes for method in lane.methods} if catalog.retiring else set()
        busy |= {part.method for part in self._dataplane.batcher.waiting()} if catalog.retiring else set()
        for model in [catalog.others[key] for key in catalog.retiring]:
            if model.key in wanted:
                catalog.retiring.discard(model.key)
            elif busy.isdisjoint(model.methods.values()):
                self._part_with(model)

    def _part_with(self, model: ServedModel) -> None:
        for lane in self._lanes:
            lane.part_with(model.key)
        self._dataplane.forget(model)
        self._models.part_with(model)
