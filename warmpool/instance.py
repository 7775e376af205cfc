"""One instance: the front, its lanes, and the order in which they come up and go down.

start: the zygote imports while the front reads the catalog and verifies weights; the primary lane is forked as soon as
the zygote can. The CPU lane starts once the primary has tried everything, or has died: beside a primary that loads it
would only take its cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from cache import audit
from cache.errors import CacheError, Damaged, StoreUnavailable, told
from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from warmpool import __version__, messages
from warmpool.batcher import Batcher
from warmpool.batches import Batch
from warmpool.catalog import Catalog, ServedModel, read_catalog, read_model, verify_weights
from warmpool.cold_start import ColdStart
from warmpool.dataplane import Answer, DataPlane
from warmpool.forking import Preload, Zygote
from warmpool.lanes import LaneProxy
from warmpool.load_plan import Loadable, LoadPlan, plan_loads
from warmpool.manifest import bucket_name, serving_path, weights_path
from warmpool.request_trace import request_spans
from warmpool.settings import Settings
from warmpool.standing_zygote import StandingZygote
from warmpool.tracing import Traces
from warmpool.upkeep import Upkeep

if TYPE_CHECKING:
    from cache.executable import Mode
    from warmpool.metrics import Metrics

log = logging.getLogger(__name__)

STATUS_WAIT_S_MAX = 0.5
LANE_STOP_S_MAX = 2.0


class Instance:
    """The state of a running instance. It is its lanes' `Watcher`."""

    def __init__(
        self, settings: Settings, store: SignedStore, zygote: Zygote, preload: Preload, cold_start: ColdStart
    ) -> None:
        self.settings = settings
        self.store = store
        self.state = "starting"
        self._far = not isinstance(store.bottom, LocalStore)  # a look at a file may be a download
        self.settled = asyncio.Event()  # the first lane is ready, or has failed to be
        self.traces = Traces(settings.traces_kept_max)
        self.cold_start = cold_start
        self.batcher = Batcher(settings.queue_rows_max, self._batch_finished)
        self.dataplane = DataPlane(self.batcher)
        self.lanes: list[LaneProxy] = []
        self.upkeep = Upkeep(store, self.lanes, self)
        self._preload = preload
        self._zygote = StandingZygote(zygote, preload, self._zygote_started)
        self._starts: dict[str, ColdStart] = {"primary": cold_start}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._weights_verified = False
        self._weights_identities: dict[str, str] = {}

    @cached_property
    def metrics(self) -> Metrics:
        """The instance's series. The thread that imports the HTTP side asks for them first, before any request."""
        from warmpool import metrics

        return metrics.Metrics(self)

    def _batch_finished(self, batch: Batch, lane: LaneProxy) -> None:
        self.metrics.batch(batch, lane)

    async def start(self) -> None:
        """Read the catalog, start the lanes, verify weights. Returns when the lanes are on their way."""
        self._zygote.watch()
        with_catalog = time.time_ns()
        self.dataplane.catalog = await asyncio.to_thread(self._read_store)
        self.cold_start.add("front", [messages.Stage("read catalog", with_catalog, time.time_ns())])
        primary_mode: Mode = "jax" if self._preload == "jax" else "jaxlib"
        arena_bytes = self.dataplane.catalog.arena_bytes
        self.lanes[:] = [
            LaneProxy("primary", primary_mode, self._zygote, arena_bytes, self.store.trust, self),
            LaneProxy("cpu", "jaxlib", self._zygote, arena_bytes, self.store.trust, self),
        ]
        self.batcher.lanes = self.lanes
        self.lanes[0].start()
        await self._verify_weights()

    def _read_store(self) -> Catalog:
        self.store.refresh_trust()
        return read_catalog(self.store)

    async def tend(self) -> None:
        """Care for the store until cancelled; begins when the start is over."""
        await self.settled.wait()
        await self.upkeep.run(self._fingerprints)

    async def stop(self) -> None:
        """End lanes and zygote; what still waits gets its answer first."""
        self.state = "draining"
        self.batcher.close()
        async with asyncio.TaskGroup() as group:
            for lane in self.lanes:
                group.create_task(lane.stop(LANE_STOP_S_MAX))
        self._zygote.unwatch()
        await asyncio.to_thread(self._zygote.close)
        if self.traces.exporter is not None:
            await asyncio.to_thread(self.traces.exporter.close)

    def drain(self) -> None:
        """Be unready from now on; requests that come all the same are still answered."""
        self.state = "draining"

    # What callers ask

    def unready_reasons(self) -> dict[str, str]:
        """Why the instance is not ready, by model ("" for the instance itself); empty when it is.

        A model that cannot be served at all is a problem in the status, and does not take the others out of service.
        """
        catalog = self.dataplane.catalog
        reasons: dict[str, str] = {}
        if self.state == "draining":
            reasons[""] = "the instance is draining"
        elif not self._weights_verified:
            reasons[""] = "the instance is starting"
        elif not catalog.models:
            reasons = dict(catalog.problems) or {"": "no model is published in the store"}
        for name, model in catalog.models.items():
            if not self.model_ready(model):
                reasons[name] = self._missing(model) or "its minimum set is not warm"
        return reasons

    def model_ready(self, model: ServedModel) -> bool:
        """Whether the primary lane holds the model's minimum set, warm."""
        return bool(self.lanes) and self._holds_minimum(self.lanes[0], model)

    async def status(self) -> dict[str, Any]:
        """The document of /v1/status."""
        answers = await asyncio.gather(*(lane.ask(STATUS_WAIT_S_MAX) for lane in self.lanes))
        reasons = self.unready_reasons()
        return {
            "version": __version__,
            "state": self.state,
            "ready": not reasons,
            "reasons": reasons,
            "problems": self.dataplane.catalog.problems,
            "front": {"pid": os.getpid(), "jax_imported": sys.modules.get("jax") is not None},
            "zygote": {"pid": self._zygote.current.process.pid},
            "models": {
                name: {
                    "version": model.manifest.version,
                    "ready": self.model_ready(model),
                    "methods": list(model.methods),
                }
                for name, model in self.dataplane.catalog.models.items()
            },
            "store": {"trouble": self.upkeep.store_trouble, "quarantined": self.upkeep.quarantined},
            "lanes": [_lane_status(lane, answer) for lane, answer in zip(self.lanes, answers, strict=True)],
            "rows_waiting": self.batcher.rows_waiting,
        }

    def record_request(
        self,
        trace_id: str,
        parent_id: str,
        *,
        start_ns: int,
        end_ns: int,
        answer: Answer | None,
        model: str,
        status: int | str,
    ) -> None:
        """Record the trace and metrics of a request; `status` is the protocol's own."""
        attributes = {
            "warmpool.status": status,
            "warmpool.model": model[:128],
            "warmpool.cold": answer is not None and any(part.cold for part in answer.parts),
        }
        self.traces.record(
            trace_id,
            request_spans(parent_id=parent_id, start_ns=start_ns, end_ns=end_ns, answer=answer, attributes=attributes),
        )
        self.metrics.request(answer.method if answer else None, status, (end_ns - start_ns) / 1e9, trace_id)

    # What lanes tell

    def hello(self, lane: LaneProxy, fingerprint: dict[str, str], stages: list[messages.Stage]) -> None:
        start = self._starts.setdefault(lane.name, ColdStart(f"{lane.name} lane start", lane.started_ns))
        first = stages[0].start_ns
        start.add(f"{lane.name} lane", [messages.Stage("fork", min(self._forkable_ns(lane), first), first), *stages])
        self._fingerprints[lane.name] = Fingerprint(fingerprint)
        plan = partial(self._plan, lane, list(self.dataplane.catalog.models.values()))
        planned = partial(self._planned, lane, lane.started_ns, time.time_ns())
        told = (asyncio.get_running_loop(), plan, planned)
        threading.Thread(target=_tell, args=told, name="plan", daemon=True).start()

    def _planned(self, lane: LaneProxy, started_ns: int, plan_ns: int, plan: LoadPlan | Exception) -> None:
        """Give a lane its plan, if it is the process still that the plan is for."""
        if (lane.state, lane.started_ns) != ("starting", started_ns):
            return
        if isinstance(plan, Exception):
            lane.give_up(plan)
            return
        lane.load(plan)
        if lane.held.cold_reasons or plan.missing:
            self.upkeep.notice()
        if start := self._starts.get(lane.name):
            stage = "fetch" if self._far else "plan"
            start.add(f"{lane.name} lane", [messages.Stage(stage, plan_ns, time.time_ns())])
        self._check_ready(lane)
        self._check_filled(lane)
        self.batcher.changed()

    def progressed(self, lane: LaneProxy, what: Loadable | str, stages: list[messages.Stage]) -> None:
        if lane.name not in self._starts:  # what was cold is warm after all
            self._starts[lane.name] = ColdStart(f"{lane.name} lane repair", stages[0].start_ns)
        title = what
        if isinstance(what, Loadable):
            title = what.title
            self.store.audit.record("load", **_audited(lane, what))
        self._starts[lane.name].add(f"{lane.name} lane: {title}", stages)
        self._check_weights(lane)
        self._check_ready(lane)
        self._check_filled(lane)
        self.batcher.changed()

    def damaged(self, lane: LaneProxy, loadable: Loadable, reason: str) -> None:
        log.error(
            "executable cannot be made warm", extra={"lane": lane.name, "executable": loadable.title, "reason": reason}
        )
        self.store.audit.record("refuse", **(_audited(lane, loadable) | {"reason": reason}))
        self.upkeep.notice()
        self._check_ready(lane)
        self._check_filled(lane)
        self.batcher.changed()

    def finished(self, lane: LaneProxy, batch: Batch, done: messages.Done) -> None:
        self.batcher.finished(lane, batch, done)

    def failed(self, lane: LaneProxy, batch: Batch | None, reason: str) -> None:
        if batch is not None:
            log.error(
                "batch failed",
                extra={
                    "lane": lane.name,
                    "method": f"{batch.method.model}:{batch.method.name}",
                    "bucket": batch.bucket,
                    "rows": batch.rows,
                    "reason": reason,
                },
            )
        if lane.state == "down":
            self._starts.pop(lane.name, None)
            self.settled.set()
            self._start_cpu_lane()
        self.batcher.failed(batch)

    def _plan(self, lane: LaneProxy, models: Iterable[ServedModel], first: int = 0) -> LoadPlan:
        return plan_loads(
            self.store,
            models,
            self._fingerprints[lane.name],
            verified=self._weights_identities,
            ladder_only=lane is not self.lanes[0],
            first=first,
            far=self._far,
        )

    def plan_missing(self, lane: LaneProxy) -> LoadPlan | None:
        """A plan for the models that the lane's own has not, None if it has all."""
        if lane.held.load_plan is None or not lane.held.load_plan.missing:
            return None
        models = [model for name, model in self.dataplane.catalog.models.items() if name in lane.held.load_plan.missing]
        return self._plan(lane, models, first=len(lane.held.load_plan.loadables))

    def unread(self) -> list[str]:
        """Models that cannot be served, and might be if they were read again."""
        return list(self.dataplane.catalog.problems)

    def read_again(self, name: str) -> tuple[ServedModel, str] | None:
        """A model with the identity of its weights, verified; None if it has no version. In a thread.

        Raises:
            CacheError: It still cannot be served.
        """
        self.store.discard(serving_path(name))
        model = read_model(self.store, name)
        if model is None:
            return None
        if Catalog({name: model}).arena_bytes > self.lanes[0].arena.size_bytes:
            raise StoreUnavailable(f"{name} needs more shared memory than there was at the start: start anew")
        return model, self._verified(model)

    def admit(self, name: str, model: ServedModel, identity: str) -> None:
        """Serve a model that could not be read at the start; the lanes are told with the next look."""
        log.info("model can be served after all", extra={"model": model.key})
        catalog = self.dataplane.catalog
        catalog.models[name] = model
        del catalog.problems[name]
        self._weights_identities[model.key] = identity
        for lane in self.lanes:
            if lane.held.load_plan is not None:
                lane.held.load_plan.missing[name] = "it could not be read at the start"

    # How it comes up

    async def _verify_weights(self) -> None:
        started_ns = time.time_ns()
        catalog = self.dataplane.catalog
        for name, model in list(catalog.models.items()):
            try:
                self._weights_identities[model.key] = await asyncio.to_thread(self._verified, model)
                for lane in self.lanes:
                    self._check_weights(lane)
            except (CacheError, OSError) as error:
                log.exception("model cannot be served", extra={"model": name})
                problem = told(error) if isinstance(error, CacheError) else "its weights cannot be read"
                catalog.problems[name] = problem
                self.store.audit.record("refuse", model=name, version=model.manifest.version, reason=problem)
                del catalog.models[name]
                self.batcher.withdraw(model.methods.values(), f"model {name!r} cannot be served; see /v1/status")
        self.cold_start.add("front", [messages.Stage("verify weights", started_ns, time.time_ns())])
        self._weights_verified = self.batcher.open = True
        self._check_ready(self.lanes[0])
        self._check_filled(self.lanes[0])
        self.batcher.changed()

    def _verified(self, model: ServedModel) -> str:
        """Verify a model's weights; a copy of them that is damaged is fetched again first."""
        try:
            return verify_weights(model)
        except Damaged:
            if not self._far:
                raise
            log.warning("weights are damaged here: they are fetched again", extra={"model": model.key})
            path = weights_path(model.manifest.weights.digest)
            self.store.discard(path)
            self.store.local_path(path)
            return verify_weights(model)

    def _check_weights(self, lane: LaneProxy) -> None:
        """A lane that mapped another file than the one which was verified starts anew, and maps what is there now."""
        for key, verified in self._weights_identities.items():
            if lane.held.mapped.get(key) not in {None, "", verified}:
                log.error("weights were replaced while they were verified", extra={"lane": lane.name, "model": key})
                lane.replace(self.store.trust)

    def _check_ready(self, lane: LaneProxy) -> None:
        """The lane's start is over once it has tried every model's minimum set and the weights are verified."""
        start = self._starts.get(lane.name)
        models = self.dataplane.catalog.models
        if start is None or start.end_ns is not None or lane.held.load_plan is None or not self._weights_verified:
            return
        if any(reason is None for name in models for _, reason in lane.held.minimum(name)):
            return
        start.end_ns = time.time_ns()
        self.traces.record_cold_start(start.trace(start.end_ns))
        if lane is self.lanes[0]:
            self.settled.set()
            if self.state == "starting":
                self.state = "serving"

    def _check_filled(self, lane: LaneProxy) -> None:
        """Keep the trace of what a lane loaded after it was ready, once it has tried everything."""
        start = self._starts.get(lane.name)
        if start is None or start.end_ns is None or not lane.held.loaded:
            return
        del self._starts[lane.name]
        if fill := start.fill_trace(f"{lane.name} lane fill"):
            self.traces.record_cold_start(fill)
        if lane is self.lanes[0]:
            self._start_cpu_lane()

    def _start_cpu_lane(self) -> None:
        cpu = self.lanes[1]
        if cpu.state == "starting" and cpu.started_ns == 0:
            cpu.start()

    def _holds_minimum(self, lane: LaneProxy, model: ServedModel) -> bool:
        name = model.manifest.model
        if lane.held.load_plan is None or name in lane.held.load_plan.missing:
            return False
        return all(reason == "" for _, reason in lane.held.minimum(name))

    def _missing(self, model: ServedModel) -> str:
        """Why the primary lane cannot come to hold the model's minimum set, "" if nothing is known to be wrong."""
        plan = self.lanes[0].held.load_plan if self.lanes else None
        if plan is None:
            return ""
        name = model.manifest.model
        cold = (f"{loadable.title}: {reason}" for loadable, reason in self.lanes[0].held.minimum(name) if reason)
        return plan.missing.get(name) or next(cold, "")

    def _zygote_started(self, stages: list[messages.Stage]) -> None:
        if self.cold_start.end_ns is None:
            self.cold_start.add("zygote", stages)

    def _forkable_ns(self, lane: LaneProxy) -> int:
        """From when on the lane's start waited for nothing but the fork itself."""
        return max(lane.started_ns, self._zygote.ready_ns)


def _audited(lane: LaneProxy, loadable: Loadable) -> audit.Fields:
    method = loadable.method
    return {
        "model": method.model,
        "version": method.version,
        "method": method.name,
        "bucket": bucket_name(loadable.candidate.bucket),
        "lane": lane.name,
        "key": loadable.message.key,
    }


def _tell(
    loop: asyncio.AbstractEventLoop, make: Callable[[], LoadPlan], tell: Callable[[LoadPlan | Exception], None]
) -> None:
    """In a thread: make a plan, which may wait for downloads, or for a disk, and tell it to the event loop."""
    plan: LoadPlan | Exception
    try:
        plan = make()
    except Exception as error:  # noqa: BLE001  told where the lane is
        plan = error
    with contextlib.suppress(RuntimeError):  # the loop has ended, and the instance with it
        loop.call_soon_threadsafe(tell, plan)


def _lane_status(lane: LaneProxy, answer: messages.Answer | None) -> dict[str, Any]:
    plan = lane.held.load_plan
    return {
        "name": lane.name,
        "pid": lane.pid,
        "state": lane.state,
        "mode": lane.mode,
        "warm": lane.held.warm_count,
        "planned": len(plan.loadables) if plan else 0,
        "missing": plan.missing if plan else {},
        "cold": {plan.loadables[number].title: reason for number, reason in lane.held.cold_reasons.items()}
        if plan
        else {},
        "busy": lane.batch is not None,
        "batches": lane.batches_run,
        "restarts": lane.restarts,
        "compiles": answer.compiles if answer else None,
        "resident_bytes": answer.resident_bytes if answer else None,
    }
