"""One instance: the front, its lanes, and the order in which they come up and go down.

start: the primary lane is asked for before the catalog is read, and forked as soon as the zygote has imported; weights
are verified meanwhile, by what an early fork found. The CPU lane starts once the primary has tried everything, or has
died: beside a primary that loads it would only take its cores.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from cache.fingerprint import Fingerprint
from cache.signed_store import SignedStore
from warmpool import messages
from warmpool.batcher import Batcher
from warmpool.batches import Batch
from warmpool.byte_budget import ByteBudget
from warmpool.churn_watch import ChurnWatch
from warmpool.cold_start import ColdStart
from warmpool.compiling.late_service import LateService
from warmpool.dataplane import Answer, DataPlane
from warmpool.early_digests import EarlyDigests
from warmpool.forking import Preload, Zygote
from warmpool.lane_starts import LaneStarts
from warmpool.lanes import LaneProxy
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.plan_following import PlanFollowing
from warmpool.readiness import Readiness
from warmpool.repository import Repository
from warmpool.request_trace import RequestTrace
from warmpool.rollout.controller import Rollouts
from warmpool.served_models import ServedModels
from warmpool.settings import Settings
from warmpool.standing_zygote import StandingZygote
from warmpool.tracing import Context, Traces
from warmpool.upkeep import Upkeep
from warmpool.version_following import VersionFollowing
from warmpool.version_progress import minimum
from warmpool.watchdog import Limits

if TYPE_CHECKING:
    from cache.executable import Mode
    from warmpool.metrics import Metrics

log = logging.getLogger(__name__)

STATUS_WAIT_S_MAX = 0.5
STOP_SHARE = 2 / 3  # of the time to stop, for each of what is stopped side by side


class Instance:
    """The state of a running instance. It is its lanes' `Watcher`."""

    def __init__(
        self,
        settings: Settings,
        store: SignedStore,
        zygote: Zygote,
        preload: Preload,
        cold_start: ColdStart,
        early: EarlyDigests,
    ) -> None:
        self.settings = settings
        self.store = store
        self.listening = False  # over HTTP
        self.underway = asyncio.Event()  # the first lane knows what to load
        self.settled = asyncio.Event()  # the first lane is ready, or has failed to be
        self.traces = Traces(settings.traces_kept_max)
        self.cold_start = cold_start
        self.byte_budget = ByteBudget(settings.queue_bytes_max)
        self.batcher = Batcher.of(settings, self._batch_finished)
        self.dataplane = DataPlane(self.batcher)
        self.lanes: list[LaneProxy] = []
        self.readiness = Readiness(self.dataplane, self.lanes)
        self.churn = ChurnWatch(self.dataplane, self.lanes)
        self.models = ServedModels(store, self.dataplane, self.lanes, early)
        self.upkeep = Upkeep(store, self.lanes)
        calls = self.upkeep.calls
        self.plan_following = PlanFollowing(self.lanes, self.models, calls, self.upkeep.notice)
        self.versions = VersionFollowing(store, self.dataplane, self.lanes, self.models, self.plan_following, calls)
        self.repository = Repository(self.versions, self.dataplane, self.lanes)
        state, far = self.repository.state, lambda: self.models.far
        self.rollouts = Rollouts.of(store, self.dataplane, self.versions, state, calls, far)
        parts = (self.dataplane, self.lanes, self.models, self.upkeep, self.plan_following)
        self.compiling = LateService(settings, store, *parts)
        self.versions.awaited = self.compiling.makes
        self.repository.why_not_made = self.compiling.why_not
        self._preload = preload
        self._zygote = StandingZygote(zygote, preload, self._zygote_started, Limits.of(settings))
        self._starts = LaneStarts(self.traces, cold_start)

    @cached_property
    def metrics(self) -> Metrics:
        """The instance's series. The thread that imports the HTTP side asks for them first, before any request."""
        from warmpool import metrics

        return metrics.Metrics(self)

    def _batch_finished(self, batch: Batch, lane: LaneProxy) -> None:
        self.metrics.batch(batch, lane)
        self.dataplane.traffic.ran(batch)
        self.rollouts.counting.batch_ran(batch, lane)

    async def start(self) -> None:
        """Read the catalog, start the lanes, verify weights. Returns when the lanes are on their way."""
        self._zygote.watch()
        with_catalog = time.time_ns()
        self.dataplane.catalog = await asyncio.to_thread(self.models.read)
        self.cold_start.add("front", [messages.Stage("read catalog", with_catalog, time.time_ns())])
        modes: dict[str, Mode] = {"primary": "jax" if self._preload == "jax" else "jaxlib", "cpu": "jaxlib"}
        sizes = (self.dataplane.catalog.arena_bytes, self.settings.lane_memory_bytes_max, Limits.of(self.settings))
        self.lanes[:] = [
            LaneProxy(name, mode, self._zygote, self.store.trust, self, *sizes) for name, mode in modes.items()
        ]
        self.batcher.serve(self.lanes)
        self.dataplane.read.set()
        self.lanes[0].start()
        await self._verify_weights()

    async def tend(self) -> None:
        """Care for the store until cancelled; begins when the start is over."""
        await self.settled.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.churn.run())
            group.create_task(self.upkeep.run(self.models.fingerprints))
            group.create_task(self.plan_following.run())
            group.create_task(self.versions.run())
            group.create_task(self.rollouts.run())
            group.create_task(self.compiling.run())
            group.create_task(self.dataplane.traffic.keep(self.store, self.upkeep.calls))

    async def stop(self, wait_s_max: float) -> None:
        """End lanes and zygote, write and send what is left to tell; what still waits gets its answer first."""
        self.readiness.state = "draining"
        self.batcher.close()
        async with asyncio.TaskGroup() as group:
            for lane in self.lanes:
                group.create_task(lane.stop(STOP_SHARE * wait_s_max))
            group.create_task(self.dataplane.traffic.write_last(self.store, self.upkeep.calls))
            if endpoint := self.settings.otlp_endpoint:
                end = partial(self.traces.end_export, endpoint, "warmpool", STOP_SHARE * wait_s_max)
                group.create_task(asyncio.to_thread(end))
        self._zygote.unwatch()
        await asyncio.to_thread(self._zygote.close)

    @property
    def pids(self) -> list[int]:
        """Of zygote and lanes, as far as they are known."""
        return [self._zygote.current.process.pid, *(lane.pid for lane in self.lanes if lane.pid)]

    def drain(self) -> None:
        """Be unready from now on; requests that come all the same are still answered."""
        self.readiness.state = "draining"
        self.batcher.drain()

    # What callers ask

    def unready_reasons(self) -> dict[str, str]:
        """See `Readiness.reasons`."""
        return self.readiness.reasons()

    async def status(self) -> dict[str, Any]:
        """The document of /v1/status."""
        answers = await asyncio.gather(*(lane.ask(STATUS_WAIT_S_MAX) for lane in self.lanes))
        return self.readiness.status(answers, self.repository.describe()) | {
            "zygote": self._zygote.describe(),
            "store": {"trouble": self.upkeep.store_trouble, "quarantined": self.upkeep.quarantined},
            "churn": self.churn.describe(),
            "rollouts": self.rollouts.status(),
            "compiling": self.compiling.describe(),
            "rows_waiting": self.batcher.rows_waiting,
            "bytes_held": self.byte_budget.held_bytes,
        }

    def record_request(
        self,
        context: Context,
        *,
        start_ns: int,
        end_ns: int,
        answer: Answer | None,
        model: str,
        status: int | str,
    ) -> None:
        """Record the trace and metrics of a request; `status` is the protocol's own."""
        about = self.churn.request(answer, model, status)
        parent_id = context.parent_id
        trace = RequestTrace(parent_id=parent_id, start_ns=start_ns, end_ns=end_ns, answer=answer, attributes=about)
        self.traces.record(context.trace_id, trace, sampled=context.sampled)
        exported = context.trace_id if context.sampled or trace.cold else None
        self.metrics.request(answer.method if answer else None, status, (end_ns - start_ns) / 1e9, exported)

    # What lanes tell

    def hello(self, lane: LaneProxy, fingerprint: dict[str, str], stages: list[messages.Stage]) -> None:
        self._starts.began(lane, stages, self._zygote.ready_ns)
        self.models.fingerprints[lane.name] = Fingerprint(fingerprint)
        self.models.plan(lane, partial(self._planned, lane, lane.started_ns, time.time_ns()))

    def _planned(self, lane: LaneProxy, started_ns: int, plan_ns: int, plan: LoadPlan | Exception) -> None:
        """Give a lane its plan, if it is the process still that the plan is for."""
        if (lane.state, lane.started_ns) != ("starting", started_ns):
            return
        if isinstance(plan, Exception):
            lane.life.process.give_up(plan)
            return
        lane.load(plan)
        self.underway.set()
        if lane.held.cold_reasons:
            self.upkeep.notice()
        self._starts.planned(lane, "fetch" if self.models.far else "plan", plan_ns)
        self.models.part_with_gone(lane)
        self.moved(lane)

    def progressed(self, lane: LaneProxy, what: Loadable | str, stages: list[messages.Stage]) -> None:
        if isinstance(what, Loadable):
            self.store.audit.record("load", **(what.audited | {"lane": lane.name}))
        self._starts.loaded(lane, what.title if isinstance(what, Loadable) else what, stages)
        self._check_weights(lane)
        self.moved(lane)

    def damaged(self, lane: LaneProxy, loadable: Loadable, reason: str) -> None:
        log.error(
            "executable cannot be made warm", extra={"lane": lane.name, "executable": loadable.title, "reason": reason}
        )
        self.store.audit.record("refuse", **(loadable.audited | {"lane": lane.name, "reason": reason}))
        self.upkeep.notice()
        self.moved(lane)

    def cooled(self, lane: LaneProxy) -> None:
        self.moved(lane)

    def finished(self, lane: LaneProxy, batch: Batch, done: messages.Done) -> None:
        self.batcher.finished(lane, batch, done)

    def failed(self, lane: LaneProxy, batch: Batch | None, reason: str, *, out_of_memory: bool = False) -> None:
        if batch is not None:
            self.rollouts.counting.batch_failed(batch, lane)
            method = f"{batch.method.model}:{batch.method.name}"
            about = {"lane": lane.name, "method": method, "bucket": batch.bucket, "rows": batch.rows, "reason": reason}
            log.error("batch failed", extra=about)
        if lane.state == "down":
            self._starts.died(lane)
            self.settled.set()
            self._start_cpu_lane()
            self.versions.moved()
        self.batcher.failed(batch, out_of_memory=out_of_memory)

    # How it comes up

    async def _verify_weights(self) -> None:
        started_ns = time.time_ns()
        async for _ in self.models.verify():
            for lane in self.lanes:
                self._check_weights(lane)
        self.cold_start.add("front", [messages.Stage("verify weights", started_ns, time.time_ns())])
        self.cold_start.add("early digests", self.models.early.stages)
        self.readiness.weights_verified = self.batcher.open = True
        self.moved(self.lanes[0])

    def moved(self, lane: LaneProxy) -> None:
        """See what follows from where a lane is now."""
        self._check_ready(lane)
        if self._starts.filled(lane) and lane is self.lanes[0]:
            self._start_cpu_lane()
        self.versions.moved()
        self.batcher.changed()

    def _check_weights(self, lane: LaneProxy) -> None:
        """A lane that mapped another file than the one which was verified starts anew, and maps what is there now."""
        for key in self.models.replaced(lane):
            log.warning("weights were replaced while they were verified", extra={"lane": lane.name, "model": key})
            lane.replace(self.store.trust)

    def _check_ready(self, lane: LaneProxy) -> None:
        """The lane has started once it has tried all minimum sets, weights are verified, and callers are answered."""
        models = self.dataplane.catalog.models
        checked = self.listening and self.readiness.weights_verified
        if lane.held.load_plan is None or not checked or not self._starts.under_way(lane):
            return
        if any(reason is None for model in models.values() for _, reason in minimum(lane.held, model.key)):
            return
        self._starts.over(lane)
        if lane is self.lanes[0]:
            self.settled.set()
            if self.readiness.state == "starting":
                self.readiness.state = "serving"

    def _start_cpu_lane(self) -> None:
        if (cpu := self.lanes[1]).state == "starting" and not cpu.started_ns:
            cpu.start()

    def _zygote_started(self, stages: list[messages.Stage]) -> None:
        if self.cold_start.end_ns is None:
            self.cold_start.add("zygote", stages)
