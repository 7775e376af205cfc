"""Times and priorities have their effect in a running instance, by every way in which a caller can say them."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.instance_process import InstanceProcess, inferred, tensors, wait_until
from tests.warmpool.stopped_lane import StoppedLane
from tests.warmpool.test_grpc_app import connected, outputs_of, refusal, request
from tests.warmpool.triton import client as triton_grpc
from warmpool import wire

LATE = {429, 504}  # refused at once where a prediction says so, and else when the time is over
INFER = "/v2/models/tiny:predict/infer"
PREDICT = "/v1/models/tiny:predict"
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


class Unstaged(InstanceProcess):
    """An instance in which whatever comes while a lane is busy waits."""

    command = (sys.executable, "-m", "tests.warmpool.unstaged_instance")


@pytest.fixture(scope="module")
def instance(tiny_store, tmp_path_factory, port):
    log_file = tmp_path_factory.mktemp("instance") / "log"
    # A level of priority is worth more waiting than any machine takes to send a few requests.
    flags = ("--grpc-port", str(port), "--priority-aging-ms", "100000")
    with Unstaged(tiny_store, log_file, *flags) as running:
        running.wait_warm()
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def busy(instance, pool):
    """A lane that stands still in the middle of a batch."""
    with StoppedLane(instance) as lane:
        first = pool.submit(instance.infer, "count", steps=[1])
        lane.wait_busy()
        yield lane
    first.result()


# Times


def ask_v2(instance, headers, parameters):
    return instance.post(INFER, {"inputs": [X], "parameters": parameters}, headers).status


def ask_rows(instance, headers, parameters):
    return instance.post(PREDICT, {"instances": [X["data"]], "parameters": parameters}, headers).status


def ask_binary(instance, headers, parameters):
    asked = wire.InferRequest(inputs=tensors("predict", {"x": [[1, 2, 3, 4]]}), parameters=parameters)
    body, length = wire.encode_request(asked)
    return instance.post(INFER, body, {**headers, wire.HEADER_LENGTH: str(length)}).status


@pytest.mark.parametrize("ask", [ask_v2, ask_rows, ask_binary])
def test_a_time_in_the_parameters_is_kept_and_of_two_the_shorter(instance, busy, ask):
    assert ask(instance, {}, {"timeout": 100_000}) in LATE
    assert ask(instance, {"x-warmpool-timeout-ms": "20000"}, {"timeout": 100_000}) in LATE
    assert ask(instance, {"x-warmpool-timeout-ms": "100"}, {"timeout": 20_000_000}) in LATE
    assert instance.gauge("warmpool_rows_waiting") == 0


@pytest.mark.parametrize("ask", [ask_v2, ask_rows, ask_binary])
def test_a_time_that_suffices_and_one_of_zero_are_no_hindrance(instance, ask):
    for parameters in ({"timeout": 20_000_000}, {"timeout": 0}, {"timeout": 0, "priority": 0}, {}):
        assert ask(instance, {}, parameters) == 200


@pytest.mark.parametrize("ask", [ask_v2, ask_rows, ask_binary])
@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({}, {"timeout": -1}),
        ({}, {"timeout": "1000"}),
        ({}, {"timeout": 1.5}),
        ({}, {"timeout": True}),
        ({}, {"timeout": 86_400_000_001}),
        ({}, {"priority": 8}),
        ({}, {"priority": "high"}),
        ({"x-warmpool-priority": "8"}, {}),
        ({"x-warmpool-priority": "high"}, {}),
        ({"x-warmpool-timeout-ms": "0"}, {}),
    ],
)
def test_what_is_no_time_or_priority_is_a_400(instance, ask, headers, parameters):
    assert ask(instance, headers, parameters) == 400


def test_the_refusal_names_the_field_what_came_and_what_is_allowed(instance):
    reply = instance.post(INFER, {"inputs": [X], "parameters": {"timeout": "soon"}})
    allowed = "a whole number, 0 to 86400000000: microseconds, 0 for none"
    assert reply.json()["error"] == f"parameters.timeout: got 'soon'; allowed: {allowed}"
    reply = instance.post(INFER, {"inputs": [X]}, {"x-warmpool-priority": "9"})
    allowed = "0 (the default), 1 (most urgent) to 7 (least urgent)"
    assert reply.json()["error"] == f"x-warmpool-priority: got '9'; allowed: {allowed}"


def given_x():
    given = triton.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    return [given]


def test_tritons_client_says_its_time_and_priority_over_http(instance, busy):
    with contextlib.closing(triton.InferenceServerClient(f"127.0.0.1:{instance.port}")) as client:
        assert "schedule_policy" in client.get_server_metadata()["extensions"]
        for arguments, statuses in (({"timeout": 100_000}, LATE), ({"priority": 8, "timeout": 100_000}, {400})):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("tiny:predict", given_x(), **arguments)
            assert int(caught.value.status()) in statuses


def test_tritons_client_says_its_time_and_priority_over_grpc(instance, port, busy):
    late = {"StatusCode.DEADLINE_EXCEEDED", "StatusCode.RESOURCE_EXHAUSTED"}
    with contextlib.closing(triton_grpc.InferenceServerClient(f"127.0.0.1:{port}")) as client:
        assert "schedule_policy" in client.get_server_metadata().extensions
        given = triton_grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        for arguments, statuses in (
            ({"timeout": 100_000}, late),
            ({"timeout": 100_000, "priority": 1}, late),
            ({"timeout": 20_000_000, "client_timeout": 0.1}, late),
            ({"priority": 8, "timeout": 100_000}, {"StatusCode.INVALID_ARGUMENT"}),
        ):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("tiny:predict", [given], **arguments)
            assert caught.value.status() in statuses


def with_parameter(name, **value):
    made = request("predict", x=[[1, 2, 3, 4]])
    for field, given in value.items():
        setattr(made.parameters[name], field, given)
    if not value:
        made.parameters[name].SetInParent()
    return made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (with_parameter("timeout", int64_param=-1), "parameters.timeout: got -1; allowed: a whole number, 0 to 8640"),
        (with_parameter("timeout", uint64_param=2**63), f"parameters.timeout: got {2**63}; allowed: "),
        (with_parameter("timeout", string_param="1"), "parameters.timeout: got '1'; allowed: "),
        (with_parameter("timeout", double_param=1.0), "parameters.timeout: got 1.0; allowed: "),
        (with_parameter("timeout", bool_param=True), "parameters.timeout: got True; allowed: "),
        (with_parameter("timeout"), "parameters.timeout: got None; allowed: "),
        (with_parameter("priority", uint64_param=8), "parameters.priority: got 8; allowed: a whole number, 0 to 7: "),
    ],
)
def test_what_is_no_time_or_priority_is_an_invalid_argument(instance, port, made, words):
    with connected(port) as stub:
        error = refusal(stub.ModelInfer, made)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(words)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (("x-warmpool-priority", "8"), "x-warmpool-priority: got '8'; allowed: 0 (the default), 1 (most urgent)"),
        (("x-warmpool-timeout-ms", "0"), "x-warmpool-timeout-ms: got '0'; allowed: 1 to 86400000"),
    ],
)
def test_metadata_that_is_no_time_or_priority_is_an_invalid_argument(instance, port, metadata, words):
    with connected(port) as stub:
        error = refusal(stub.ModelInfer, request("predict", x=[[1, 2, 3, 4]]), metadata=(metadata,))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(words)


def test_the_time_in_metadata_is_kept_and_both_integers_mean_a_time(instance, port, busy):
    late = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    with connected(port) as stub:
        made = request("predict", x=[[1, 2, 3, 4]])
        assert refusal(stub.ModelInfer, made, metadata=(("x-warmpool-timeout-ms", "100"),)).code() in late
        for field in ("int64_param", "uint64_param"):
            assert refusal(stub.ModelInfer, with_parameter("timeout", **{field: 100_000})).code() in late


# Priorities: of requests that cannot share a batch, those that are more urgent run first


def scale(index):
    return tensors("scale", {"values": [index, 1], "factor": 1})


def queued(instance, pool, index, headers=None, **parameters):
    """A request that waits; its answer to come."""
    asked = wire.InferRequest(inputs=scale(index), parameters=parameters)
    body, length = wire.encode_request(asked)
    before = instance.gauge("warmpool_rows_waiting")
    future = pool.submit(
        instance.post, "/v2/models/tiny:scale/infer", body, {**(headers or {}), wire.HEADER_LENGTH: str(length)}
    )
    wait_until(lambda: instance.gauge("warmpool_rows_waiting") == before + 1)
    return future


def starts(instance, trace_ids):
    """When requests began to run, in the order of these traces."""
    traces = {trace["trace_id"]: trace["spans"] for trace in instance.get("/v1/traces?count=1000").json()}
    return [next(span["start_ns"] for span in traces[trace_id] if span["name"] == "run") for trace_id in trace_ids]


def test_the_more_urgent_runs_first_however_it_was_said(instance, port, pool):
    with connected(port) as stub:
        with StoppedLane(instance) as lane:
            first = pool.submit(instance.infer, "count", steps=[1])
            lane.wait_busy()
            last = queued(instance, pool, 0, priority=7)
            plain = queued(instance, pool, 1)
            by_parameter = queued(instance, pool, 2, priority=3)
            by_header = queued(instance, pool, 3, headers={"x-warmpool-priority": "2"}, priority=7)
            urgent = request("scale", values=[4, 1], factor=1)
            urgent.parameters["priority"].uint64_param = 1
            over_grpc = stub.ModelInfer.future(urgent, timeout=30)
            wait_until(lambda: instance.gauge("warmpool_rows_waiting") == 5)
        first.result()
        over_http = [inferred(future.result()) for future in (by_header, by_parameter, plain, last)]
        response = over_grpc.result()
    assert outputs_of(response)["scaled"].tolist() == [4.0, 1.0]
    assert [answer.outputs["scaled"].tolist() for answer in over_http] == [[3, 1], [2, 1], [1, 1], [0, 1]]
    order = [
        response.parameters["trace_id"].string_param,
        *(answer.parameters["trace_id"] for answer in over_http),
    ]
    assert starts(instance, order) == sorted(starts(instance, order))
