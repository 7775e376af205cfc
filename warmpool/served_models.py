"""The models that an instance serves: read, their weights verified, planned for lanes, read again where they failed.

What asks the store may wait for it, and runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

from cache.errors import CacheError, Damaged, NotStored, StoreUnavailable, told
from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from warmpool.catalog import (
    Catalog,
    ServedMethod,
    ServedModel,
    read_catalog,
    read_target,
    read_version,
    reason_of,
    verify_weights,
)
from warmpool.dataplane import DataPlane
from warmpool.early_digests import EarlyDigests
from warmpool.lanes import LaneProxy
from warmpool.load_plan import NOT_PUBLISHED, Loadable, LoadPlan, add_executables, plan_loads
from warmpool.manifest import Target, manifest_path, program_path, weights_path
from warmpool.plan_changes import change_of
from warmpool.version_progress import left_behind

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
        programs: set[str] | None = None
        with contextlib.suppress(StoreUnavailable):  # which says nothing of any of them
            programs = set(await asyncio.to_thread(self._store.names, "programs"))
        for name, model in list(catalog.models.items()):
            try:
                if programs is not None:
                    _require_programs(model, programs)
                self.identities[model.key] = await asyncio.to_thread(self.verified, model)
            except (CacheError, OSError) as error:
                log.exception("model cannot be served", extra={"model": name})
                problem = told(error) if isinstance(error, CacheError) else "its weights cannot be read"
                catalog.problems[name] = problem
                self._store.audit.record("refuse", model=name, version=model.manifest.version, reason=problem)
                del catalog.models[name]
                why = f"model {name!r} cannot be served; see /v1/status"
                self._dataplane.batcher.withdraw(model.methods.values(), why)
                for lane in self._lanes:
                    self.part_with_gone(lane)
            else:
                yield model

    def take_up(self, name: str, version: str) -> ServedModel | str:
        """A version that lanes may load, all of it there and its weights verified, or why not. In a thread.

        Why not is the same each time, as long as the store is. Raises StoreUnavailable: that says nothing of it.
        """
        try:
            model = read_version(self._store, name, version)
            _require_programs(model, self._store.names("programs"))
            self.identities[model.key] = self.verified(model)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  it is that version's problem
            self._store.discard(manifest_path(name, version))  # perhaps only the copy that is kept here is damaged
            return reason_of(error, f"{name}/{version}")
        return model

    def part_with(self, model: ServedModel) -> None:
        """Lanes hold a version no more."""
        self.identities.pop(model.key, None)

    def part_with_gone(self, lane: LaneProxy) -> None:
        """Let a lane part with what was planned for it, and has gone meanwhile; one of the same key may have come."""
        for key in left_behind(lane.held, self._dataplane.catalog.versions):
            log.info("version has gone while it was planned", extra={"lane": lane.name, "model": key})
            lane.part_with(key)

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
        """The models (by key) of which the lane mapped another weights file than the one that was verified.

        Or none, before that one was there: a copy that is damaged is fetched again while the lane already maps.
        """
        plan = lane.held.load_plan
        weights = {} if plan is None else plan.weights
        replaced = []
        for key, verified in self.identities.items():
            mapped = lane.held.mapped.get(key)
            too_early = mapped == "" and key in weights and not weights[key].verified
            if too_early or mapped not in {None, "", verified}:
                replaced.append(key)
        return replaced

    def plan(self, lane: LaneProxy, tell: Callable[[LoadPlan | Exception], None]) -> None:
        """Plan what gets requests for a lane, and tell the event loop the plan or why there is none.

        In a thread of its own. Further versions come later: a lane that starts is to answer soon.
        """
        models = list(self._dataplane.catalog.models.values())
        again = lane.life.restarts > 0  # then there are callers, as a rule
        loop = asyncio.get_running_loop()

        def make() -> None:
            plan: LoadPlan | Exception
            try:
                plan = plan_loads(
                    self._store,
                    models,
                    self.fingerprints[lane.name],
                    verified=self.identities,
                    ladder_only=lane is not self._lanes[0],
                    far=self.far,
                    quietly=again,
                )
            except Exception as error:  # noqa: BLE001  told where the lane is
                plan = error
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the instance with it
                loop.call_soon_threadsafe(tell, plan)

        threading.Thread(target=make, name="plan", daemon=True).start()

    def change(
        self, lane: LaneProxy, having: Mapping[int, Loadable], further: LoadPlan, only: Collection[str] | None = None
    ) -> dict[ServedMethod, tuple[int, ...]]:
        """Add to a further plan what a lane is to have besides; by method the numbers of what is planned no more.

        In a thread.

        Args:
            lane: The lane.
            having: What it has, or is to have.
            further: A plan without executables, whose numbers go on where those of the lane's own end, with the
                versions that the lane has, and why it has others not.
            only: The versions (by key) that are looked at; None for all.

        Raises:
            StoreUnavailable: The store cannot be read. A target that is damaged, or gone, changes nothing.
        """
        gone: dict[ServedMethod, tuple[int, ...]] = {}
        for key, model in self._dataplane.catalog.versions.items():
            if only is not None and key not in only:
                continue
            known = key in further.weights
            target = self._target(lane, model, further)
            if target is None:
                continue
            change = change_of(model, target, having, ladder_only=lane is not self._lanes[0])
            gone |= change.gone
            if change.new or not known:
                further.add_weights(model, self.identities.get(key, ""))
                add_executables(further, self._store, [(model, spec) for spec in change.new], far=self.far)
        return gone

    def _target(self, lane: LaneProxy, model: ServedModel, further: LoadPlan) -> Target | None:
        """What there is of a version for a lane's kind of machine, None if that cannot be used.

        Why it cannot counts for a version that the lane has not; what is warm is kept, whatever becomes of the store.
        """
        try:
            target = read_target(self._store, model, self.fingerprints[lane.name].digest)
            if target is not None and lane is self._lanes[0] and not target.has_primary:
                target = None
            problem = "" if target else NOT_PUBLISHED
        except StoreUnavailable:
            raise
        except CacheError as error:
            log.warning("target cannot be read", extra={"model": model.key, "reason": str(error)})
            target, problem = None, told(error)
        further.missing.pop(model.key, None)
        if problem and model.key not in further.weights:
            further.missing[model.key] = problem
        return target


def _require_programs(model: ServedModel, there: Collection[str]) -> None:
    """What executables of a version are made from has to be there. Raises NotStored."""
    needed = {program for method in model.manifest.methods.values() for program in method.programs.values()}
    if absent := sorted(needed.difference(there)):
        raise NotStored(program_path(absent[0]))
