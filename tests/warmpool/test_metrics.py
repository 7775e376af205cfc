"""Counters count what happened, gauges are read where state lives, and a caller's words never become labels."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.warmpool.served import doubling, part
from warmpool import churn
from warmpool.batches import Batch
from warmpool.circuit import FAILURES_MAX, Circuit
from warmpool.fallback import Step, StepCounts
from warmpool.metrics import Metrics
from warmpool.selection import Candidate
from warmpool.watchdog import Cause

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class Lane:
    name: str = "primary"
    warm_count: int = 0
    batch: Any = None
    restarts: int = 0
    held_bytes: int = 0
    bytes_max: int = 0
    evicted: int = 0
    evictions: int = 0
    reloads: int = 0
    shortages: int = 0
    ends: Counter[Cause] = field(default_factory=Counter)
    circuit: Circuit = field(default_factory=Circuit)

    @property
    def held(self):
        """It is its own `Holdings`, and what else a lane has."""
        return self

    residency = memory = life = held


@dataclass
class Queues:
    rows_waiting: int = 0


@dataclass
class Budget:
    held_bytes: int = 0


@dataclass
class Upkeep:
    store_trouble: str = ""
    quarantined: int = 0


@dataclass
class Watch:
    """It is its own `Churn`."""

    steps: StepCounts = field(default_factory=StepCounts)
    state: churn.State = churn.State.STEADY

    @property
    def churn(self):
        return self


@dataclass
class Compiling:
    waiting: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass
class Rollouts:
    models: list[str] = field(default_factory=list)
    decided: Counter[tuple[str, str]] = field(default_factory=Counter)

    def is_active(self, model):
        return model in self.models


@dataclass
class State:
    """What metrics read of an instance."""

    batcher: Queues = field(default_factory=Queues)
    byte_budget: Budget = field(default_factory=Budget)
    lanes: list[Lane] = field(default_factory=list)
    upkeep: Upkeep = field(default_factory=Upkeep)
    churn: Watch = field(default_factory=Watch)
    compiling: Compiling = field(default_factory=Compiling)
    rollouts: Rollouts = field(default_factory=Rollouts)
    reasons: dict[str, str] = field(default_factory=dict)

    def unready_reasons(self):
        return self.reasons


@pytest.fixture
def state():
    return State(lanes=[Lane(), Lane("cpu")])


@pytest.fixture
def metrics(state):
    return Metrics(state)


def scraped(metrics):
    """A function from a series' name and labels to its value in a scrape made now; None if it is not there."""
    text, content_type = metrics.exposition("")
    assert content_type.startswith("text/plain")
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }
    return lambda name, **labels: values.get((f"warmpool_{name}", *sorted(labels.items())))


def batch(rows, padding, **times):
    async def made():
        served = doubling()
        parts = [part(served, {"batch": rows}, [np.zeros(rows, np.int32)])]
        made = Batch(method=served, parts=parts, executable=Candidate(0, {"batch": 8}, 1.0), formed_ns=0, **times)
        made.elements, made.padded_elements = round(100 * (1 - padding)), round(100 * padding)
        return made

    return asyncio.run(made())


@pytest.mark.parametrize("version", ["abc", "1..0", "-", "9" * 5000, "1,0", "\xb2"])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_a_scraper_that_asks_for_a_version_that_is_none_gets_text(metrics, kind, version):
    text, content_type = metrics.exposition(f"{kind}; version={version}")
    assert content_type.startswith("text/plain")
    assert "warmpool_ready 1.0" in text.decode()


METHOD = {"model": "tiny", "method": "double"}


def test_requests_are_counted_by_method_and_status(metrics):
    for status in (200, 200, 429):
        metrics.request(doubling(), status, 0.003, "t" * 32)
    value = scraped(metrics)
    assert value("requests_total", status="200", **METHOD) == 2
    assert value("requests_total", status="429", **METHOD) == 1
    assert value("request_seconds_count", **METHOD) == 3
    assert value("request_seconds_sum", **METHOD) == pytest.approx(0.009)
    assert value("request_seconds_bucket", le="0.002", **METHOD) == 0
    assert value("request_seconds_bucket", le="0.005", **METHOD) == 3


def test_a_refused_request_has_no_labels_of_its_caller(metrics):
    metrics.request(None, 404, 0.001, "t" * 32)
    value = scraped(metrics)
    assert value("requests_total", status="404", model="", method="") == 1
    assert value("request_seconds_count", model="", method="") is None


def test_a_batch_counts_its_rows_and_its_padding(metrics, state):
    metrics.batch(batch(3, 0.25), state.lanes[1])
    metrics.batch(batch(8, 0.0), state.lanes[0])
    value = scraped(metrics)
    assert value("batch_rows_sum", lane="cpu", **METHOD) == 3
    assert value("batch_rows_bucket", lane="cpu", le="2.0", **METHOD) == 0
    assert value("batch_rows_bucket", lane="cpu", le="4.0", **METHOD) == 1
    assert value("batch_padding_share_sum", lane="cpu", **METHOD) == 0.25
    assert value("batch_rows_sum", lane="primary", **METHOD) == 8
    assert value("batch_padding_share_bucket", lane="primary", le="0.01", **METHOD) == 1


def test_a_batch_counts_how_right_its_prediction_was_unless_a_clock_was_set_back(metrics, state):
    metrics.batch(batch(3, 0.25, predicted_us=300.0, took_us=400.0), state.lanes[0])
    metrics.batch(batch(3, 0.25, predicted_us=300.0, took_us=-1.0), state.lanes[0])
    value = scraped(metrics)
    assert value("batch_prediction_ratio_sum", lane="primary", **METHOD) == 0.75
    assert value("batch_prediction_ratio_count", lane="primary", **METHOD) == 1
    assert value("batch_prediction_ratio_bucket", lane="primary", le="0.67", **METHOD) == 0
    assert value("batch_prediction_ratio_bucket", lane="primary", le="0.8", **METHOD) == 1


def test_gauges_are_what_is_so_when_they_are_read(metrics, state):
    value = scraped(metrics)
    assert value("ready") == 1
    assert value("rows_waiting") == 0
    assert value("lane_busy", lane="primary") == 0
    state.reasons = {"tiny": "loading"}
    state.batcher.rows_waiting = 12
    state.byte_budget.held_bytes = 3456
    state.lanes[0] = Lane(warm_count=5, batch=object(), restarts=2)
    value = scraped(metrics)
    assert value("ready") == 0
    assert value("rows_waiting") == 12
    assert value("request_bytes_held") == 3456
    assert value("lane_executables_warm", lane="primary") == 5
    assert value("lane_busy", lane="primary") == 1
    assert value("lane_busy", lane="cpu") == 0
    assert value("lane_restarts", lane="primary") == 2


def test_ends_of_a_lanes_processes_are_counted_by_their_reason_and_an_open_circuit_is_told(metrics, state):
    assert scraped(metrics)("lane_circuit_open", lane="primary") == 0
    state.lanes[0].ends.update({Cause.RUN_HUNG: 2, Cause.KILLED: 1})
    for _ in range(FAILURES_MAX):
        state.lanes[0].circuit.failed("it died", 0.0)
    value = scraped(metrics)
    assert value("lane_ended_total", lane="primary", reason="run_hung") == 2
    assert value("lane_ended_total", lane="primary", reason="killed") == 1
    assert value("lane_ended_total", lane="cpu", reason="killed") is None
    assert value("lane_circuit_open", lane="primary") == 1
    assert value("lane_circuit_open", lane="cpu") == 0
    state.lanes[0].circuit.tried()
    assert scraped(metrics)("lane_circuit_open", lane="primary") == 1


def test_what_came_and_went_for_want_of_memory_is_counted(metrics, state):
    state.lanes[1] = Lane("cpu", held_bytes=70, bytes_max=90, evicted=3, evictions=5, reloads=4, shortages=1)
    value = scraped(metrics)
    gauges = ("lane_memory_bytes", "lane_memory_bytes_max", "lane_executables_evicted")
    counters = ("lane_evictions_total", "lane_reloads_total", "lane_out_of_memory_total")
    assert [value(name, lane="cpu") for name in (*gauges, *counters)] == [70, 90, 3, 5, 4, 1]
    assert [value(name, lane="primary") for name in (*gauges, *counters)] == [0] * 6


def test_what_the_upkeep_found_is_counted_and_trouble_with_the_store_is_so_while_it_lasts(metrics, state):
    value = scraped(metrics)
    assert (value("store_trouble"), value("quarantined_total")) == (0, 0)
    state.upkeep = Upkeep("it is away", 2)
    value = scraped(metrics)
    assert (value("store_trouble"), value("quarantined_total")) == (1, 2)
    state.upkeep.store_trouble = ""
    value = scraped(metrics)
    assert (value("store_trouble"), value("quarantined_total")) == (0, 2)


def test_what_was_missing_is_counted_by_what_became_of_it(metrics, state):
    state.compiling = Compiling(3, {"made": 5, "failed": 1})
    value = scraped(metrics)
    assert value("compiles_waiting") == 3
    assert value("compiled_total", outcome="made") == 5
    assert value("compiled_total", outcome="failed") == 1


def test_requests_are_counted_by_the_step_of_the_ladder_that_they_took(metrics, state):
    for model, step in (("tiny", Step.EXACT), ("tiny", Step.EXACT), ("second", Step.HELD), ("", Step.REFUSED)):
        state.churn.steps.add(model, step)
    value = scraped(metrics)
    assert value("requests_by_step_total", model="tiny", step="exact") == 2
    assert value("requests_by_step_total", model="second", step="held") == 1
    assert value("requests_by_step_total", model="", step="refused") == 1
    assert value("requests_by_step_total", model="tiny", step="held") is None


def test_the_state_that_the_instance_is_in_is_the_one_that_is_1(metrics, state):
    for now in churn.State:
        state.churn.state = now
        value = scraped(metrics)
        assert {one: value("churn_state", state=one) for one in churn.State} == {
            one: float(one is now) for one in churn.State
        }


def test_a_latency_has_the_trace_it_came_from_as_its_exemplar(metrics):
    metrics.request(doubling(), 200, 0.003, "a" * 32)
    metrics.request(doubling(), 200, 0.004, None)  # in the same bucket, but exported nowhere
    metrics.request(doubling(), 200, 30.0, None)
    text, content_type = metrics.exposition(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    exemplars = [
        sample.exemplar
        for family in parse_openmetrics(text.decode())
        for sample in family.samples
        if sample.name == "warmpool_request_seconds_bucket" and sample.exemplar
    ]
    assert [(exemplar.labels, exemplar.value) for exemplar in exemplars] == [({"trace_id": "a" * 32}, 0.003)]


def test_every_series_says_what_it_is(metrics, state):
    metrics.request(doubling(), 200, 0.003, "a" * 32)
    metrics.batch(batch(3, 0.25), state.lanes[0])
    families = list(parse_text(metrics.exposition("")[0].decode()))
    assert all(family.documentation for family in families)
    assert all(family.name.startswith("warmpool_") for family in families)
