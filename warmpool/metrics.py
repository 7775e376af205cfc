"""An instance's metrics, for Prometheus and OpenMetrics. Counters count events; gauges are read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.churn import State

if TYPE_CHECKING:
    from warmpool.instance import Instance
    from warmpool.lanes import LaneProxy

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SHARES = (0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Every series of an instance."""

    def __init__(self, instance: Instance) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "method")
        self._requests = Counter(
            "warmpool_requests",
            "Inference requests by the status of their protocol.",
            (*labels, "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "warmpool_request_seconds",
            "Time from body to response.",
            labels,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._rows = Histogram(
            "warmpool_batch_rows", "Rows of executed batches.", (*labels, "lane"), buckets=_ROWS, registry=self.registry
        )
        self._padding = Histogram(
            "warmpool_batch_padding_share",
            "Share of a batch's input elements that is padding.",
            (*labels, "lane"),
            buckets=_SHARES,
            registry=self.registry,
        )
        self._prediction = Histogram(
            "warmpool_batch_prediction_ratio",
            "What a batch was predicted to take, over what it took.",
            (*labels, "lane"),
            buckets=_RATIOS,
            registry=self.registry,
        )
        self.registry.register(_Gauges(instance))
        self._of_requests = cache(self._request_series)  # they are as many as the registry keeps anyway
        self._of_batches = cache(self._batch_series)

    def request(self, method: ServedMethod | None, status: int | str, seconds: float, trace_id: str | None) -> None:
        """Count an answered request; refused ones have no method, since a caller's words must not become labels.

        The id of its trace is the exemplar of its latency; None for one that is not exported.
        """
        if method is None:
            self._requests.labels("", "", str(status)).inc()
            return
        requests, taken = self._of_requests(method.model, method.name, str(status))
        requests.inc()
        taken.observe(seconds, {"trace_id": trace_id} if trace_id else None)

    def batch(self, batch: Batch, lane: LaneProxy) -> None:
        """Count an executed batch."""
        rows, padding, prediction = self._of_batches(batch.method.model, batch.method.name, lane.name)
        rows.observe(batch.rows)
        padding.observe(batch.padding)
        if batch.took_us > 0:  # else a clock was set back
            prediction.observe(batch.predicted_us / batch.took_us)

    def _request_series(self, model: str, method: str, status: str) -> tuple[Counter, Histogram]:
        return self._requests.labels(model, method, status), self._seconds.labels(model, method)

    def _batch_series(self, model: str, method: str, lane: str) -> tuple[Histogram, Histogram, Histogram]:
        rows, padding, prediction = (
            series.labels(model, method, lane) for series in (self._rows, self._padding, self._prediction)
        )
        return rows, padding, prediction

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The text of all series and its content type, in the format that the scraper prefers."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type


class _Gauges(Collector):
    """State, read from where it lives."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def collect(self) -> Iterable[Metric]:
        yield _gauge(
            "warmpool_ready", "1 while every model's minimum set is warm.", not self._instance.unready_reasons()
        )
        yield _gauge("warmpool_rows_waiting", "Rows in the queues.", self._instance.batcher.rows_waiting)
        yield _gauge(
            "warmpool_request_bytes_held",
            "Bytes of requests that are being received, wait or run.",
            self._instance.byte_budget.held_bytes,
        )
        churn = self._instance.churn
        steps = CounterMetricFamily(
            "warmpool_requests_by_step",
            "Requests by the step of the fallback ladder that they took; the rest failed for other reasons.",
            labels=["model", "step"],
        )
        for (model, step), count in churn.steps.by_model.items():
            steps.add_metric([model, step], count)
        yield steps
        states = GaugeMetricFamily("warmpool_churn_state", "1 for the state that the instance is in.", labels=["state"])
        for state in State:
            states.add_metric([state], churn.churn.state is state)
        yield states
        yield from _of_rollouts(self._instance)
        yield from _of_compiling(self._instance)
        upkeep = self._instance.upkeep
        yield _gauge("warmpool_store_trouble", "1 while the store cannot be used.", bool(upkeep.store_trouble))
        yield CounterMetricFamily(
            "warmpool_quarantined", "Executables that this instance set aside.", value=upkeep.quarantined
        )
        for kind, name, documentation, value in _OF_LANES:
            family = kind(f"warmpool_lane_{name}", documentation, labels=["lane"])
            for lane in self._instance.lanes:
                family.add_metric([lane.name], value(lane))
            yield family
        ended = CounterMetricFamily(
            "warmpool_lane_ended", "Processes of lanes that had to be replaced.", labels=["lane", "reason"]
        )
        for lane in self._instance.lanes:
            for cause, count in lane.life.ends.items():
                ended.add_metric([lane.name, cause], count)
        yield ended


_OF_LANES: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[LaneProxy], float]], ...] = (
    (GaugeMetricFamily, "executables_warm", "Warm executables of a lane.", lambda lane: lane.held.warm_count),
    (GaugeMetricFamily, "busy", "1 while a lane runs a batch.", lambda lane: lane.batch is not None),
    (GaugeMetricFamily, "restarts", "Times that a lane was started again.", lambda lane: lane.life.restarts),
    (
        GaugeMetricFamily,
        "circuit_open",
        "1 while a lane that failed again and again is not trusted yet, whether it is down or on trial.",
        lambda lane: lane.life.circuit.state != "closed",
    ),
    (
        GaugeMetricFamily,
        "memory_bytes",
        "Bytes of a lane's memory that are in use or promised.",
        lambda lane: lane.held.residency.held_bytes,
    ),
    (
        GaugeMetricFamily,
        "memory_bytes_max",
        "Bytes that a lane may take, 0 for any number.",
        lambda lane: lane.held.bytes_max,
    ),
    (
        GaugeMetricFamily,
        "executables_evicted",
        "Executables for which there is no room until they are needed.",
        lambda lane: lane.memory.evicted,
    ),
    (
        CounterMetricFamily,
        "evictions",
        "Executables that had to go for others.",
        lambda lane: lane.memory.evictions,
    ),
    (
        CounterMetricFamily,
        "reloads",
        "Executables that came, or came back, because they were needed.",
        lambda lane: lane.memory.reloads,
    ),
    (
        CounterMetricFamily,
        "out_of_memory",
        "Loads and runs for which the device had no room.",
        lambda lane: lane.memory.shortages,
    ),
)


def _of_rollouts(instance: Instance) -> Iterable[Metric]:
    rollouts = instance.rollouts
    active = GaugeMetricFamily(
        "warmpool_rollout_active", "1 during a rollout, and for five minutes after: alerts wait.", labels=["model"]
    )
    for model in rollouts.models:
        active.add_metric([model], rollouts.is_active(model))
    yield active
    decided = CounterMetricFamily(
        "warmpool_rollouts_decided", "Rollouts that this instance decided.", labels=["model", "decision"]
    )
    for labels, count in rollouts.decided.items():
        decided.add_metric([*labels], count)
    yield decided


def _of_compiling(instance: Instance) -> Iterable[Metric]:
    compiling = instance.compiling
    yield _gauge("warmpool_compiles_waiting", "Executables that are missing and will be made.", compiling.waiting)
    compiled = CounterMetricFamily(
        "warmpool_compiled", "Executables that were missing, by what became of them.", labels=["outcome"]
    )
    for outcome, count in compiling.outcomes.items():
        compiled.add_metric([outcome], count)
    yield compiled


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)
