"""The compile service of an instance whose start is over: before that nothing of it is even imported."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cache.signed_store import SignedStore
from warmpool.catalog import ServedModel
from warmpool.dataplane import DataPlane
from warmpool.fallback import Unknown
from warmpool.lanes import LaneProxy
from warmpool.plan_following import PlanFollowing
from warmpool.served_models import ServedModels
from warmpool.settings import Settings
from warmpool.upkeep import Upkeep

if TYPE_CHECKING:
    from warmpool.compiling.gaps import Made
    from warmpool.compiling.service import CompileService


class LateService:
    """Of one instance, with these parts."""

    def __init__(
        self,
        settings: Settings,
        store: SignedStore,
        dataplane: DataPlane,
        lanes: Sequence[LaneProxy],
        models: ServedModels,
        upkeep: Upkeep,
        plan_following: PlanFollowing,
    ) -> None:
        self._settings = settings
        self._store = store
        self._dataplane = dataplane
        self._lanes = lanes
        self._models = models
        self._upkeep = upkeep
        self._plan_following = plan_following
        self._service: CompileService | None = None
        if settings.compile != "off":
            dataplane.batcher.cold.forecast = Unknown()

    async def run(self) -> None:
        """Until it is cancelled; begins when the start is over."""
        await asyncio.to_thread(importlib.import_module, "warmpool.compiling.service")
        from warmpool.compiling.lacking import Lacking
        from warmpool.compiling.service import CompileService, Told

        lacking = Lacking(self._store, self._lanes, self._dataplane, self._models.fingerprints)
        told = Told(self._take_up, self._changed)
        self._service = CompileService(self._settings, self._store, lacking, self._upkeep.calls, told)
        self._upkeep.noticed = self._service.notice
        if self._service.off:
            self._changed()
        await self._service.run()

    def makes(self, model: ServedModel) -> bool:
        """Whether something of a version is being made, or may be yet, for the primary lane."""
        if self._service is None:
            return self._settings.compile != "off"
        return self._service.makes(model.manifest.model, model.manifest.version)

    def why_not(self, model: ServedModel) -> str:
        """Why the minimum set of a version cannot be made, "" if it may be, as far as is known."""
        return self._service.why_not(model.manifest.model, model.manifest.version) if self._service else ""

    @property
    def waiting(self) -> int:
        """How many executables are missing and will be made, those that are under way among them."""
        return self._service.waiting if self._service else 0

    @property
    def outcomes(self) -> dict[str, int]:
        """How many there were ever of each outcome."""
        return self._service.outcomes if self._service else {}

    def describe(self) -> dict[str, Any]:
        """As the status shows it."""
        return self._service.describe() if self._service else {"state": "starting"}

    def _changed(self) -> None:
        """It is known what will be made, and that is something else than before."""
        off = self._service is None or self._service.off
        self._dataplane.batcher.cold.forecast = None if off else self._service
        self._dataplane.batcher.changed()

    async def _take_up(self, made: Collection[Made]) -> set[Made]:
        """The store has more than before; what of that its lane could not be told now."""
        self._upkeep.stored()
        untold: set[Made] = set()
        for lane in self._lanes:
            own = {one for one in made if one.ladder is (lane is not self._lanes[0])}
            if own and not await self._plan_following.look(lane, {one.version for one in own}):
                untold |= own
        return untold
