"""The models that an instance serves: read, their weights verified, planned for lanes, read again where they failed.

What asks the store may wait for it, and runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from cache.errors import CacheError, Damaged, StoreUnavailable, told
from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from warmpool.catalog import (
    Catalog,
    ServedMethod,
    ServedModel,
    read_catalog,
    read_model,
    read_target,
    verify_weights,
)
from warmpool.dataplane import DataPlane
from warmpool.early_digests import EarlyDigests
from warmpool.lanes import LaneProxy
from warmpool.load_plan import Loadable, LoadPlan, add_executables, plan_loads
from warmpool.manifest import Target, serving_path, weights_path
from warmpool.plan_changes import change_of

log = logging.getLogger(__name__)


class ServedModels:
    """The models of one instance.

    Args:
        store: Where they are published.
        dataplane: Has the catalog.
        lanes: The primary one first; they may come later.
        early: Knows digests of weights.

    Attributes:
        early: As given.
        far: Whether a look at a file may be a download.
        identities: Of the weights files that were verified, by model key.
        fingerprints: Of the lanes, by name, as they become known.
    """

    def __init__(
        self,
        store: SignedStore,
        dataplane: DataPlane,
        lanes: Sequence[LaneProxy],
        early: EarlyDigests,
    ) -> None:
        self.early = early
        self.far = not isinstance(store.bottom, LocalStore)
        self.identities: dict[str, str] = {}
        self.fingerprints: dict[str, Fingerprint] = {}
        self._store = store
        self._dataplane = dataplane
        self._lanes = lanes

    def read(self) -> Catalog:
        """What the store serves now. In a thread."""
        self._store.refresh_trust()
        return read_catalog(self._store)

    async def verify(self) -> AsyncIterator[ServedModel]:
        """Verify the weights of all models, and give each that is sound; the others are problems, and not served."""
        catalog = self._dataplane.catalog
        for name, model in list(catalog.models.items()):
            try:
                self.identities[model.key] = await asyncio.to_thread(self.verified, model)
            except (CacheError, OSError) as error:
                log.exception("model cannot be served", extra={"model": name})
                problem = told(error) if isinstance(error, CacheError) else "its weights cannot be read"
                catalog.problems[name] = problem
                self._store.audit.record("refuse", model=name, version=model.manifest.version, reason=problem)
                del catalog.models[name]
                why = f"model {name!r} cannot be served; see /v1/status"
                self._dataplane.batcher.withdraw(model.methods.values(), why)
            else:
                yield model

    def verified(self, model: ServedModel) -> str:
        """The identity of a model's weights, verified; a copy that is damaged is fetched again first. In a thread."""
        try:
            return verify_weights(model, self.early.of)
        except Damaged:
            if not self.far:
                raise
            log.warning("weights are damaged here: they are fetched again", extra={"model": model.key})
            path = weights_path(model.manifest.weights.digest)
            self._store.discard(path)
            self._store.local_path(path)
            return verify_weights(model)

    def replaced(self, lane: LaneProxy) -> list[str]:
        """The models (by key) of which the lane mapped another weights file than the one that was verified."""
        mapped = lane.held.mapped
        return [key for key, verified in self.identities.items() if mapped.get(key) not in {None, "", verified}]

    def plan(self, lane: LaneProxy, tell: Callable[[LoadPlan | Exception], None]) -> None:
        """Plan all models for a lane, in a thread of its own, and tell the event loop the plan or why there is none."""
        models = list(self._dataplane.catalog.models.values())
        loop = asyncio.get_running_loop()

        def make() -> None:
            plan: LoadPlan | Exception
            try:
                plan = self._plan(lane, models)
            except Exception as error:  # noqa: BLE001  told where the lane is
                plan = error
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the instance with it
                loop.call_soon_threadsafe(tell, plan)

        threading.Thread(target=make, name="plan", daemon=True).start()

    def plan_missing(self, lane: LaneProxy) -> LoadPlan | None:
        """A plan for the models that the lane's own has not, None if it has all. In a thread."""
        plan = lane.held.load_plan
        if plan is None or not plan.missing:
            return None
        models = [model for name, model in self._dataplane.catalog.models.items() if name in plan.missing]
        return self._plan(lane, models, first=plan.end)

    def change(
        self, lane: LaneProxy, having: Mapping[int, Loadable], further: LoadPlan
    ) -> dict[ServedMethod, tuple[int, ...]]:
        """Add to a further plan what a lane is to have besides; by method the numbers of what is planned no more.

        In a thread.

        Args:
            lane: The lane.
            having: What it has, or is to have.
            further: A plan without executables, whose numbers go on where those of the lane's own end.

        Raises:
            StoreUnavailable: The store cannot be read. A target that is damaged, or gone, changes nothing.
        """
        gone: dict[ServedMethod, tuple[int, ...]] = {}
        for name, model in list(self._dataplane.catalog.models.items()):
            target = None if name in further.missing else self._target(lane, model)
            if target is None:
                continue
            change = change_of(model, target, having, ladder_only=lane is not self._lanes[0])
            gone |= change.gone
            if change.new:
                further.add_weights(model, self.identities.get(model.key, ""))
                add_executables(further, self._store, [(model, spec) for spec in change.new], far=self.far)
        return gone

    def _target(self, lane: LaneProxy, model: ServedModel) -> Target | None:
        """What there is of a version for a lane's kind of machine, None if that cannot be used."""
        try:
            return read_target(self._store, model, self.fingerprints[lane.name].digest)
        except StoreUnavailable:
            raise
        except CacheError as error:
            log.warning("target cannot be read", extra={"model": model.key, "reason": str(error)})
            return None

    def unread(self) -> list[str]:
        """Models that cannot be served, and might be if they were read again."""
        return list(self._dataplane.catalog.problems)

    def read_again(self, name: str) -> tuple[ServedModel, str] | None:
        """A model with the identity of its weights, verified; None if it has no version. In a thread.

        Raises:
            CacheError: It still cannot be served.
        """
        self._store.discard(serving_path(name))
        model = read_model(self._store, name)
        if model is None:
            return None
        if Catalog({name: model}).arena_bytes > self._lanes[0].arena.size_bytes:
            raise StoreUnavailable(f"{name} needs more shared memory than there was at the start: start anew")
        return model, self.verified(model)

    def admit(self, name: str, model: ServedModel, identity: str) -> None:
        """Serve a model that could not be read at the start; the lanes are told with the next look."""
        log.info("model can be served after all", extra={"model": model.key})
        catalog = self._dataplane.catalog
        catalog.models[name] = model
        del catalog.problems[name]
        self.identities[model.key] = identity
        for lane in self._lanes:
            if lane.held.load_plan is not None:
                lane.held.load_plan.missing[name] = "it could not be read at the start"

    def _plan(self, lane: LaneProxy, models: Iterable[ServedModel], first: int = 0) -> LoadPlan:
        return plan_loads(
            self._store,
            models,
            self.fingerprints[lane.name],
            verified=self.identities,
            ladder_only=lane is not self._lanes[0],
            first=first,
            far=self.far,
        )
