"""Lanes with less memory than their models take: they come and go with their weights, and nothing is left behind."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.instance_process import InstanceProcess, inferred, mapped_bytes, own_bytes, serving, wait_until
from tests.warmpool.large import ROW_BYTES, WEIGHT_BYTES, hungry, largest
from warmpool import wire

BUDGET_BYTES = WEIGHT_BYTES + (15 << 20)  # for one of the models, with what a run of it takes
TURNS = 40

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tight(large_store, tmp_path_factory):
    """An instance with room for one of its three models in each lane."""
    log = tmp_path_factory.mktemp("tight") / "log"
    with serving(large_store, log, "--lane-memory-bytes-max", str(BUDGET_BYTES)) as running:
        yield running
        assert "Traceback" not in running.log


def ask(instance: InstanceProcess, model: str, x: np.ndarray) -> Any:
    """The answer and how it was served."""
    reply = instance.infer_reply(f"{model}:predict", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})
    assert reply.status == 200, reply.body
    answer = inferred(reply)
    return answer.outputs["output"], answer.parameters


def ask_one(instance: InstanceProcess, model: str) -> Any:
    if model == "hungry":
        x = np.linspace(-1, 1, 4096, dtype=np.float32)[np.newaxis]
        found, parameters = ask(instance, model, x)
        np.testing.assert_array_equal(found, hungry(x))
    else:
        found, parameters = ask(instance, model, np.eye(1, 16, dtype=np.float32))
        assert found.tolist() == [largest(model)]
    return parameters


def maps_what_it_says(instance: InstanceProcess) -> bool:
    """Whether the lane maps one model's weights if it has one warm, else none: what goes may still be on its way."""
    lane = instance.lane("primary")
    warm = {title.partition(":")[0] for title, state in lane["executables"].items() if state == "warm"}
    return mapped_bytes(lane["pid"]) == len(warm & {"heavy", "other"}) * WEIGHT_BYTES


def test_an_instance_with_room_for_one_of_three_models_is_ready_and_says_what_is_where(tight):
    status = tight.status()
    assert status["ready"]
    assert all(model["ready"] for model in status["models"].values())
    for lane in status["lanes"]:
        states = lane["executables"]
        assert states["heavy:predict batch=1"] == "warm"
        assert states["other:predict batch=1"] == states["hungry:predict batch=1"] == "evicted"
        assert states["hungry:predict batch=8"] == "cold"
        needed = int(lane["cold"]["hungry:predict batch=8"].split()[2])
        assert 8 * ROW_BYTES < needed < 9 * ROW_BYTES
        assert f"the lane has {BUDGET_BYTES} (lane_memory_bytes_max)" in lane["cold"]["hungry:predict batch=8"]
        assert lane["memory"]["bytes"] <= BUDGET_BYTES


def test_models_that_take_turns_are_answered_right_and_the_lane_has_no_more_memory_in_the_end(tight):
    turns = itertools.cycle(["heavy", "other", "hungry"])
    before = tight.lane("primary")
    seen = []
    cold = []
    for _ in range(TURNS):
        cold.append(ask_one(tight, next(turns))["cold"])
        wait_until(lambda: maps_what_it_says(tight))
        lane = tight.lane("primary")
        seen.append(own_bytes(lane["pid"]))
        assert lane["memory"]["bytes"] <= BUDGET_BYTES
    after = tight.lane("primary")
    assert after["pid"] == before["pid"]
    assert after["memory"]["evictions"] - before["memory"]["evictions"] > TURNS // 2
    assert cold.count(True) > TURNS // 2, "the caller is told"
    assert [lane["compiles"] for lane in tight.status()["lanes"]] == [0, 0]
    early, late = seen[: TURNS // 2], seen[TURNS // 2 :]
    assert min(late) < min(early) + (8 << 20), "each turn would leave one of its executables, or more"
    assert max(seen) < min(seen) + 4 * ROW_BYTES, "a run takes one, and gives it back with the next"
    traces = [trace["spans"] for trace in tight.get("/v1/traces?count=1000").json()]
    (*_, reload) = (spans for spans in traces if spans[0]["name"] == "primary lane reload")
    groups = [span["name"] for span in reload if span["parent_id"] == reload[0]["span_id"]]
    assert any(name.startswith("primary lane: weights ") for name in groups)
    assert {"weights", "fetch", "verify", "load", "first run"} <= {span["name"] for span in reload}


def test_rows_that_no_bucket_has_room_for_run_in_pieces(tight):
    x = np.linspace(-1, 1, 8 * 4096, dtype=np.float32).reshape(8, 4096)
    found, parameters = ask(tight, "hungry", x)
    np.testing.assert_array_equal(found, hungry(x))
    assert parameters["parts"] > 1


def test_a_run_for_which_there_is_no_room_is_answered_all_the_same_and_the_bucket_is_not_used_for_a_while(
    large_store, tmp_path
):
    """The system gives the lane less than its largest bucket takes, and more than two runs of the next one do.

    Two, since what one took may be given back only while the other runs.
    """
    import resource

    with serving(large_store, tmp_path / "log") as instance:
        lane = instance.lane("primary")
        assert lane["executables"]["hungry:predict batch=8"] == "warm"

        def address_bytes() -> int:
            return int(Path(f"/proc/{lane['pid']}/statm").read_text().split()[0]) * resource.getpagesize()

        x = np.linspace(-1, 1, 8 * 4096, dtype=np.float32).reshape(8, 4096)
        idle = address_bytes()
        ask(instance, "hungry", x)
        wait_until(lambda: address_bytes() <= idle + ROW_BYTES)  # what the run took is given back
        limit = address_bytes() + 6 * ROW_BYTES
        resource.prlimit(lane["pid"], resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        found, parameters = ask(instance, "hungry", x)
        np.testing.assert_array_equal(found, hungry(x))
        assert (parameters["bucket"], parameters["lane"]) == ("batch=2", "primary")
        marked = instance.lane("primary")
        assert marked["pid"] == lane["pid"], "it lives"
        assert marked["executables"]["hungry:predict batch=8"] == "marked"
        assert "RESOURCE_EXHAUSTED" in marked["cold"]["hungry:predict batch=8"]
        assert marked["memory"]["shortages"] == 1
        assert instance.gauge("warmpool_lane_out_of_memory_total", lane="primary") == 1
        assert "out of memory" in instance.log
        assert ask(instance, "hungry", x)[1]["bucket"] == "batch=2", "it is cut from the start now"
        assert instance.lane("primary")["memory"]["shortages"] == 1
