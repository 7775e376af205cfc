"""Answers of a running instance: right at every bucket's edges and in every form, alone and in shared batches."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.edges import assert_same, inputs_for, sizes_of
from tests.instance_process import Reply, serving, tensors, wait_until
from tests.tiny import BATCH, IDS_MAX, LENGTH, METHODS, SEQ
from tests.warmpool.stopped_lane import StoppedLane
from warmpool import wire

PATIENT = {wire.TIMEOUT_HEADER: "600000"}  # nobody is refused because a slow machine might answer late


@pytest.fixture
def pool():
    with ThreadPoolExecutor(32) as executor:
        yield executor


@pytest.fixture
def unused(tiny_store, tmp_path):
    """An instance of the test's own, which has measured nothing yet that it could predict a delay by."""
    with serving(tiny_store, tmp_path / "log") as running:
        yield running


def busy(lane, pool):
    """Give a stopped lane a batch, and the answer to come."""
    first = pool.submit(lane.instance.infer, "count", steps=[1])
    lane.wait_busy()
    return first


def timed(instance, name, timeout_ms, **inputs):
    """Ask for an answer within a time. What is sent is one packet, so the body comes in time, however short that is."""
    body, length = wire.encode_request(wire.InferRequest(inputs=tensors(name, inputs)))
    head = [
        f"POST /v2/models/tiny:{name}/infer HTTP/1.1",
        "Host: here",
        "Connection: close",
        f"Content-Length: {len(body)}",
        f"{wire.HEADER_LENGTH}: {length}",
        f"{wire.TIMEOUT_HEADER}: {timeout_ms}",
    ]
    with socket.create_connection(("127.0.0.1", instance.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return Reply(response.status, response.headers, response.read())


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("name", METHODS)
def test_answers_equal_jit_at_the_exact_shape_at_every_edge(instance, name, binary):
    for sizes in sizes_of(name):
        inputs = inputs_for(name, sizes)
        outputs, parameters = instance.infer(name, binary=binary, **inputs)
        assert_same(name, outputs, inputs)
        assert parameters["rows"] == sizes.get("batch", 1)
        assert parameters["parts"] == -(-parameters["rows"] // BATCH.sizes[-1])


@pytest.mark.parametrize("name", METHODS)
def test_answers_in_the_form_of_tf_serving_equal_jit(instance, name):
    for sizes in sizes_of(name):
        inputs = inputs_for(name, sizes)
        given = {
            spec.name: (inputs[spec.name].astype(bool) if spec.dtype == "bool" else inputs[spec.name]).tolist()
            for spec in METHODS[name].inputs
        }
        reply = instance.post(f"/v1/models/tiny:{name}", {"inputs": given})
        assert reply.status == 200, reply.body
        assert_same(name, reply.json()["outputs"], inputs)
        if "batch" in sizes:
            rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
            predictions = instance.post(f"/v1/models/tiny:{name}", {"instances": rows}).json()["predictions"]
            names = [spec.name for spec in METHODS[name].outputs]
            columns = {output: [row[output] if len(names) > 1 else row for row in predictions] for output in names}
            assert_same(name, columns, inputs)


def test_rows_beyond_the_largest_bucket_are_split_and_come_back_in_order(instance):
    inputs = {"x": np.arange(20 * 4).reshape(20, 4)}
    outputs, parameters = instance.infer("predict", **inputs)
    assert_same("predict", outputs, inputs)
    assert outputs["sum"].tolist() == [float(sum(range(4 * row, 4 * row + 4))) for row in range(20)]
    assert (parameters["rows"], parameters["parts"]) == (20, 3)


def test_the_bucket_that_ran_covers_the_request_and_its_padding_is_told(instance):
    _, parameters = instance.infer("tokens", ids=np.ones((3, 5)), mask=np.ones((3, 5)))
    batch, seq = (int(size.partition("=")[2]) for size in parameters["bucket"].split(","))
    assert batch in (4, 8)  # which is cheapest is measured
    assert seq in (8, 16)
    assert parameters["padding"] == pytest.approx(1 - 15 / (batch * seq), abs=1e-4)
    assert (parameters["batch_rows"], parameters["padded_rows"]) == (3, batch - 3)
    assert (parameters["elements"], parameters["padded_elements"]) == (2 * 15, 2 * (batch * seq - 15))
    assert parameters["lane"] == "primary"
    assert parameters["cold"] is False


@pytest.mark.parametrize(("name", "sizes"), [("predict", {"batch": 0}), ("tokens", {"batch": 0, "seq": 3})])
def test_no_rows_give_empty_results_of_the_right_shape(instance, name, sizes):
    inputs = inputs_for(name, sizes)
    for binary in (True, False):
        outputs, parameters = instance.infer(name, binary=binary, **inputs)
        assert_same(name, outputs, inputs)
        assert parameters["rows"] == 0


def test_no_instances_give_no_predictions(instance):
    for name in ("predict", "tokens", "invert"):
        reply = instance.post(f"/v1/models/tiny:{name}", {"instances": []})
        assert (reply.status, reply.json().get("predictions")) == (200, []), (name, reply.body)


def test_scalars_have_the_shape_of_no_dimensions(instance):
    outputs, _ = instance.infer("scale", values=[1, 2, 3], factor=4)
    assert outputs["scaled"].tolist() == [4.0, 8.0, 12.0]
    assert (outputs["total"].shape, outputs["total"].item()) == ((), 6.0)


def test_outputs_are_cut_by_their_expressions(instance):
    outputs, _ = instance.infer("tokens", ids=[[1, 2, 3]], mask=[[1, 0, 1]])
    assert outputs["doubled"].tolist() == [[0, 1, 1, 2, 2, 3, 3]]
    assert outputs["total"].tolist() == [4]


def test_numbers_that_are_not_finite_go_both_ways(instance):
    given = [0.0, -0.0, np.inf, -np.inf, np.nan]
    expected = [np.inf, -np.inf, 0.0, -0.0, np.nan]
    np.testing.assert_array_equal(instance.infer("invert", x=given).outputs["output"], expected)
    named = [0.0, -0.0, "Infinity", "-Infinity", "NaN"]
    reply = instance.post(
        "/v2/models/tiny:invert/infer", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [5], "data": named}]}
    )
    assert reply.json()["outputs"][0]["data"] == ["Infinity", "-Infinity", 0.0, -0.0, "NaN"]
    reply = instance.post("/v1/models/tiny:invert", {"instances": named})
    assert reply.json()["predictions"] == ["Infinity", "-Infinity", 0.0, -0.0, "NaN"]


@pytest.mark.parametrize(
    ("name", "sizes", "dimension", "limit"),
    [
        ("predict", {"batch": BATCH.max + 1}, "batch", BATCH.max),
        ("tokens", {"batch": 1, "seq": SEQ.max + 1}, "seq", SEQ.max),
        ("scale", {"length": LENGTH.max + 1}, "length", LENGTH.max),
    ],
)
def test_one_more_than_the_maximum_is_refused_by_the_dimensions_name(instance, name, sizes, dimension, limit):
    reply = instance.infer_reply(f"tiny:{name}", tensors(name, inputs_for(name, sizes)))
    assert reply.status == 400
    message = reply.json()["error"]
    assert f"'{dimension}'" in message
    assert f"got {limit + 1};" in message
    assert f"to {limit}" in message


def test_requests_that_come_together_share_a_batch_and_get_their_own_answers(unused, pool):
    lengths = [3, 1, 4, 16, 5, 9]
    inputs = [
        {"ids": np.full((1, length), index), "mask": np.ones((1, length))} for index, length in enumerate(lengths)
    ]
    with StoppedLane(unused) as lane:
        first = busy(lane, pool)
        waiting = [pool.submit(unused.infer, "tokens", **each) for each in inputs]
        wait_until(lambda: unused.gauge("warmpool_rows_waiting") == len(inputs))
    answers = [future.result() for future in waiting]
    assert [answer.outputs["total"].item() for answer in answers] == [
        index * length for index, length in enumerate(lengths)
    ]
    for each, answer in zip(inputs, answers, strict=True):
        assert_same("tokens", answer.outputs, each)
    assert max(answer.parameters["batch_rows"] for answer in answers) > 1, "how many share is decided by what they cost"
    assert {answer.parameters["rows"] for answer in answers} == {1}
    assert first.result().outputs["counted"].item() == 1


def test_requests_of_a_method_without_batch_dimension_never_share(unused, pool):
    with StoppedLane(unused) as lane:
        first = busy(lane, pool)
        waiting = [pool.submit(unused.infer, "scale", values=[index, 1], factor=index) for index in range(5)]
        # One may lie ready in the lane, behind the one that runs.
        wait_until(lambda: unused.gauge("warmpool_rows_waiting") >= len(waiting) - 1)
    for index, future in enumerate(waiting):
        outputs, parameters = future.result()
        assert outputs["scaled"].tolist() == [index * index, index]
        assert parameters["batch_rows"] == 1
    first.result()


def test_a_deadline_that_passes_in_the_queue_is_a_504_and_disturbs_no_neighbour(unused, pool):
    with StoppedLane(unused) as lane:
        first = busy(lane, pool)
        neighbours = [pool.submit(unused.infer, "predict", x=np.full((2, 4), index)) for index in range(3)]
        wait_until(lambda: unused.gauge("warmpool_rows_waiting") == 6)
        late = timed(unused, "predict", 300, x=np.ones((1, 4)))
        assert (late.status, late.json()["error"]) == (504, "the request's time ran out before it was answered")
        assert unused.gauge("warmpool_rows_waiting") == 6
    for index, future in enumerate(neighbours):
        assert future.result().outputs["sum"].tolist() == [4.0 * index] * 2
    assert first.result().outputs["counted"].item() == 1
    assert unused.gauge("warmpool_rows_waiting") == 0


def test_a_deadline_that_passes_during_the_run_is_a_504_and_its_batch_still_answers_the_others(unused, pool):
    """What waits for the primary lane is given to the other one together when it dies, which stands still too."""
    with StoppedLane(unused, "cpu") as other:
        lane = StoppedLane(unused)
        lane.stop()
        first = busy(lane, pool)
        late = pool.submit(timed, unused, "count", 10_000, steps=[2])
        patient = pool.submit(unused.infer, "count", steps=[3])
        wait_until(lambda: unused.gauge("warmpool_rows_waiting") == 2)
        os.kill(lane.pid, signal.SIGKILL)
        other.wait_busy()
        assert late.result().status == 504
    assert first.result().outputs["counted"].item() == 1
    assert patient.result().outputs["counted"].item() == 3
    assert patient.result().parameters["batch_rows"] == 3


def test_a_burst_of_mixed_requests_is_answered_right_one_by_one(instance, pool):
    names = ["predict", "tokens", "kinds", "scale", "invert"]
    start = threading.Barrier(20)

    def ask(index):
        name = names[index % len(names)]
        sizes = {dim.name: 1 + (7 * index) % dim.max for dim in METHODS[name].dims}
        inputs = inputs_for(name, sizes, seed=index)
        if index < start.parties:
            start.wait(timeout=30)
        return name, inputs, instance.infer(name, binary=index % 2 == 0, headers=PATIENT, **inputs)

    for name, inputs, answer in pool.map(ask, range(60)):
        assert_same(name, answer.outputs, inputs)


def test_ids_of_the_largest_value_are_served_and_larger_ones_refused(instance):
    for largest, status in ((IDS_MAX, 200), (IDS_MAX + 1, 400)):
        given = tensors("tokens", {"ids": [[0, largest]], "mask": [[1, 1]]})
        assert instance.infer_reply("tiny:tokens", given).status == status


@pytest.mark.parametrize("module", ["warmpool.instance", "warmpool.http_app", "warmpool.serve", "warmpool.cli"])
def test_the_import_of_the_front_loads_no_jax(module):
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(result.stdout.split())
    assert module in loaded
    assert loaded & {"jax", "jaxlib", "flax", "orbax", "optax", "pydantic", "httpx"} == set()
