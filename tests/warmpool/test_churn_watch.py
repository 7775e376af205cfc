"""What an instance says of its churn, and the step that each request took: in the answer, its trace and the metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.instance_process import InstanceProcess, serving, tensors, wait_until
from tests.tiny import executable_file
from tests.warmpool.fake_lane import rest
from tests.warmpool.served import Told, doubling
from warmpool.batcher import Batcher
from warmpool.catalog import Catalog, ServedModel
from warmpool.churn import State
from warmpool.churn_watch import ChurnWatch
from warmpool.dataplane import Answer, DataPlane
from warmpool.fallback import Step

DOUBLE = doubling()


@dataclass
class Held:
    """What a lane holds, as far as it is looked at: the state of each executable by number; None: no plan yet."""

    states: dict[int, str] | None = None
    cold_reasons: dict[int, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def load_plan(self) -> Any:
        return None if self.states is None else SimpleNamespace(loadables=self.states, missing=self.missing)

    def state(self, number: int) -> str:
        assert self.states is not None
        return self.states[number]


@dataclass
class Lane:
    held: Held
    state: str = "loading"


def watch_of(*lanes: Lane, told: Told | None = None) -> ChurnWatch:
    plane = DataPlane(Batcher(10, lambda batch, lane: None))
    model = cast("ServedModel", SimpleNamespace(methods={"double": DOUBLE}, key="tiny/1"))
    plane.catalog = Catalog({"tiny": model}, problems={"broken": "why"})
    plane.batcher.cold.forecast = told
    return ChurnWatch(plane, cast("Any", lanes))


def looked(*lanes: Lane, told: Told | None = None) -> ChurnWatch:
    watch = watch_of(*lanes, told=told)
    watch.look(1.0)
    return watch


@pytest.mark.parametrize(
    ("lane", "missing"),
    [
        (Lane(Held(), "starting"), 1),
        (Lane(Held({}), "warm"), 0),
        (Lane(Held({0: "warm", 1: "loading", 2: "loading", 3: "evicted", 4: "marked"})), 2),
        (Lane(Held({0: "warm", 1: "loading", 2: "evicted"}), "warm"), 0),
        (Lane(Held({0: "warm", 1: "cold"}, {1: "it is damaged"}), "warm"), 1),
        (Lane(Held({}, missing={"tiny": "it was not published"}), "warm"), 1),
    ],
)
def test_missing_is_what_is_planned_and_not_there_but_not_what_there_is_no_room_for(lane, missing):
    watch = looked(lane, Lane(Held({}), "warm"))
    assert watch.churn.missing == missing
    assert watch.churn.state is (State.FILLING if missing else State.STEADY)


def test_what_is_being_made_is_missing_too_and_who_makes_it_says_for_how_long():
    told = Told({DOUBLE: 12.0}, [{"batch": 4}, {"batch": 8}])
    watch = looked(Lane(Held({}), "warm"), told=told)
    document = watch.describe()
    assert (document["state"], document["missing"], document["steady_in_s"]) == ("filling", 2, 12.0)
    told.ready_s[DOUBLE] = 120.0
    watch.look(2.0)
    assert watch.describe()["state"] == "churning"


def answered(*steps: Step) -> Answer:
    parts = cast("Any", [SimpleNamespace(step=step, cold=step is Step.HELD) for step in steps])
    return Answer(method=DOUBLE, outputs={}, parts=parts, rows=1, validated_ns=0)


def test_a_request_counts_by_its_step_and_its_trace_says_it():
    watch = watch_of()
    assert watch.request(answered(Step.EXACT, Step.LARGER), "tiny:double", 200) == {
        "warmpool.status": 200,
        "warmpool.model": "tiny:double",
        "warmpool.cold": False,
        "warmpool.churn": "filling",
        "warmpool.step": "split",
    }
    held = watch.request(answered(Step.HELD), "tiny", "OK")
    assert (held["warmpool.step"], held["warmpool.cold"]) == ("held", True)
    watch.request(answered(Step.CPU), "tiny", "OK")
    for model, status in (("tiny:other", 503), ("broken", "UNAVAILABLE"), ("anything", 503)):
        assert watch.request(None, model, status)["warmpool.step"] == "refused"
    assert "warmpool.step" not in watch.request(None, "tiny", 429)
    assert watch.steps.by_model == {
        ("tiny", "split"): 1,
        ("tiny", "held"): 1,
        ("tiny", "cpu"): 1,
        ("tiny", "refused"): 1,
        ("broken", "refused"): 1,
        ("", "refused"): 1,
    }


@pytest.mark.parametrize(
    ("asked", "traced"),
    [
        ("tiny:double", "tiny:double"),
        ("tiny:my-secret", "tiny"),
        ("tiny", "tiny"),
        ("broken:my-secret", "broken"),
        ("my-secret:double", ""),
    ],
)
def test_of_a_name_that_a_caller_gave_a_trace_has_what_the_catalog_knows(asked, traced):
    assert watch_of().request(None, asked, 404)["warmpool.model"] == traced


def test_it_looks_until_it_is_cancelled():
    async def run() -> ChurnWatch:
        watch = watch_of(Lane(Held({}), "warm"))
        task = asyncio.get_running_loop().create_task(watch.run())
        await rest()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch

    watch = asyncio.run(run())
    assert (watch.churn.state, watch.describe()["steady_in_s"]) == (State.STEADY, 0.0)


# As it is deployed


def root_of(instance: InstanceProcess, trace_id: str) -> dict[str, Any]:
    """The attributes of a trace's first span, once it is there: it is recorded after the answer."""

    def found() -> Any:
        traces = instance.get("/v1/traces?count=1000").json()
        return next((trace for trace in traces if trace["trace_id"] == trace_id), None)

    spans: list[dict[str, Any]] = wait_until(found)["spans"]
    attributes: dict[str, Any] = next(span for span in spans if span["name"] == "front")["attributes"]
    return attributes


def test_answers_traces_metrics_and_status_of_an_instance_say_the_step(own_store, tmp_path, fingerprint):
    """The executable for 2 rows is gone, and the one for 10 long values, which is all that covers more than 4."""
    (own_store / executable_file("predict", {"batch": 2}, fingerprint)).unlink()
    (own_store / executable_file("scale", {"length": 10}, fingerprint)).unlink()
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200)
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        asked = {
            "exact": instance.infer("predict", x=np.ones((8, 4))).parameters,
            "larger": instance.infer("predict", x=np.ones((2, 4))).parameters,
            "split": instance.infer("predict", x=np.ones((20, 4))).parameters,
        }
        assert {name: one["step"] for name, one in asked.items()} == {name: name for name in asked}
        refused = instance.infer_reply("tiny:scale", tensors("scale", {"values": [1] * 5, "factor": 2}))
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        traced = {name: one["trace_id"] for name, one in asked.items()} | {
            "refused": refused.headers["x-warmpool-trace-id"]
        }
        for name, trace_id in traced.items():
            attributes = root_of(instance, trace_id)
            assert (attributes["warmpool.step"], attributes["warmpool.churn"]) == (name, "filling")
            assert instance.gauge("warmpool_requests_by_step_total", model="tiny", step=name) >= 1
        wait_until(lambda: instance.status()["churn"]["missing"] == 4)  # predict of two models; scale of two lanes
        assert instance.status()["churn"]["state"] == "filling"
        assert instance.gauge("warmpool_churn_state", state="filling") == 1


def test_while_the_primary_lane_dies_again_and_again_the_cpu_lane_answers_and_it_is_churning(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log") as instance:
        done = threading.Event()

        def kill() -> None:
            """It never lives long; and from the fifth time on it is only tried now and then."""
            while not done.wait(0.02):
                if pid := instance.lane("primary")["pid"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        def ask() -> str:
            outputs, parameters = instance.infer("predict", x=np.ones((3, 4)))
            assert outputs["sum"].tolist() == [4.0] * 3
            assert (parameters["step"] == "cpu") == (parameters["lane"] == "cpu") or parameters["step"] == "held"
            step: str = parameters["step"]
            return step

        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            try:
                wait_until(lambda: [ask() for _ in range(3)].count("cpu") == 3)
                wait_until(lambda: ask() and instance.status()["churn"]["state"] == "churning")
                assert instance.status()["churn"]["fallen_share"] > 0
                assert instance.gauge("warmpool_churn_state", state="churning") == 1
            finally:
                done.set()
            killing.result()
        wait_until(lambda: instance.lane("primary")["state"] == "warm", 100.0)
        wait_until(lambda: ask() == "exact", 100.0)
