"""Traces of a running instance: a start and a request whose stages account for the time they took."""

import secrets

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.instance_process import InstanceProcess, serving, wait_until

COVERED_MIN = 0.97
STARTS_MAX = 12
STAGES = {"interpreter", "import", "fetch", "verify", "load", "weights", "first run"}


def leaves(trace):
    parents = {span["parent_id"] for span in trace["spans"]}
    return [span for span in trace["spans"] if span["span_id"] not in parents]


def covered(trace):
    """The share of a trace's wall time that the union of its leaf spans covers."""
    (root,) = roots(trace)
    end_ns, sum_ns = root["start_ns"], 0
    for span in sorted(leaves(trace), key=lambda span: span["start_ns"]):
        start_ns = max(span["start_ns"], end_ns)
        end_ns = max(end_ns, min(span["end_ns"], root["end_ns"]))
        sum_ns += max(0, end_ns - start_ns)
    return sum_ns / (root["end_ns"] - root["start_ns"])


def roots(trace):
    ids = {span["span_id"] for span in trace["spans"]}
    return [span for span in trace["spans"] if span["parent_id"] not in ids]


def cold_starts(instance):
    return instance.get("/v1/traces?cold=1").json()


def first_start(instance):
    return wait_until(lambda: cold_starts(instance))[0]


def trace_of(instance, trace_id):
    traces = instance.get("/v1/traces?count=1000").json()
    return next(trace for trace in traces if trace["trace_id"] == trace_id)


@pytest.fixture(scope="module")
def instance(tiny_store, tmp_path_factory):
    with serving(tiny_store, tmp_path_factory.mktemp("instance") / "log", "--traces-kept-max", "20") as running:
        yield running


def test_the_first_trace_is_the_start_with_every_stage(instance):
    start = cold_starts(instance)[0]
    assert roots(start)[0]["name"] == "cold start"
    assert names(start) >= STAGES
    loaded = [span["name"] for span in start["spans"] if span["name"].startswith("primary lane: tiny:scale")]
    assert loaded[0] == "primary lane: tiny:scale length=10", "the minimum set is first"


def names(trace):
    return {span["name"] for span in trace["spans"]}


def test_every_span_lies_within_its_parent(instance):
    for trace in cold_starts(instance):
        spans = {span["span_id"]: span for span in trace["spans"]}
        for span in trace["spans"]:
            assert span["start_ns"] <= span["end_ns"]
            if parent := spans.get(span["parent_id"]):
                assert parent["start_ns"] <= span["start_ns"]
                assert span["end_ns"] <= parent["end_ns"]


def test_the_leaves_of_a_start_cover_its_wall_time(tiny_store, tmp_path):
    """The best of a few: on a machine that is busy with something else nobody may run for a while."""
    shares = []
    for turn in range(STARTS_MAX):
        with InstanceProcess(tiny_store, tmp_path / f"log{turn}") as running:
            running.wait_ready()
            running.status()
            shares.append(covered(first_start(running)))
        if shares[-1] >= COVERED_MIN:
            break
    assert max(shares) >= COVERED_MIN, shares


def test_the_cpu_lane_has_a_start_of_its_own(instance):
    roots_found = [roots(trace)[0]["name"] for trace in cold_starts(instance)]
    assert roots_found[0] == "cold start"
    assert "cpu lane start" in roots_found


@pytest.mark.parametrize("inputs", [{"x": np.ones((3, 4))}, {"x": np.ones((20, 4))}], ids=["one part", "three parts"])
def test_the_leaves_of_a_request_cover_the_front_and_its_parent_is_the_callers(instance, inputs):
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    answer = instance.infer("predict", headers={"traceparent": f"00-{trace_id}-{parent_id}-01"}, **inputs)
    assert answer.parameters["trace_id"] == trace_id
    trace = trace_of(instance, trace_id)
    (front,) = roots(trace)
    assert (front["name"], front["parent_id"]) == ("front", parent_id)
    assert names(trace) >= {"validate", "queue", "batch", "lane", "handover", "run", "return", "respond"}
    assert covered(trace) >= COVERED_MIN
    if answer.parameters["parts"] == 1:
        sum_ns = sum(span["end_ns"] - span["start_ns"] for span in leaves(trace))
        assert sum_ns == pytest.approx(front["end_ns"] - front["start_ns"], rel=1 - COVERED_MIN)


def test_the_lanes_span_says_how_it_was_served(instance):
    answer = instance.infer("predict", x=np.ones((3, 4)))
    trace = trace_of(instance, answer.parameters["trace_id"])
    lane = next(span for span in trace["spans"] if span["name"] == "lane")
    assert lane["attributes"]["warmpool.lane"] == "primary"
    assert lane["attributes"]["warmpool.bucket"] == answer.parameters["bucket"]
    assert answer.parameters["bucket"] in {"batch=4", "batch=8"}, "which is cheaper is learnt"
    run = next(span for span in trace["spans"] if span["name"] == "run")
    assert run["parent_id"] == lane["span_id"]
    assert (run["end_ns"] - run["start_ns"]) // 1000 == answer.parameters["run_us"]


def test_a_refused_request_has_a_trace_too(instance):
    reply = instance.post("/v2/models/tiny:predict/infer", b"{}")
    trace = trace_of(instance, reply.headers["x-warmpool-trace-id"])
    assert [span["name"] for span in trace["spans"]] == ["front"]
    assert 400 in trace["spans"][0]["attributes"].values()


def test_spans_of_a_caller_join_the_trace_of_its_request(instance):
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    instance.infer("predict", headers={"traceparent": f"00-{trace_id}-{parent_id}-01"}, x=np.ones((1, 4)))
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.name, span.trace_id, span.span_id = "function", bytes.fromhex(trace_id), bytes.fromhex(parent_id)
    span.start_time_unix_nano, span.end_time_unix_nano = 1, 2**62
    assert instance.post("/v1/traces", request.SerializeToString()).status == 200
    trace = trace_of(instance, trace_id)
    assert [root["name"] for root in roots(trace)] == ["function"]
    assert "front" in names(trace)


def test_the_ring_is_bounded_and_requests_do_not_push_out_a_start(instance):
    for _ in range(30):
        instance.infer("predict", x=np.ones((1, 4)))
    traces = instance.get("/v1/traces?count=1000").json()
    assert len(traces) == 20 + len(cold_starts(instance))
    assert roots(traces[0])[0]["name"] == "cold start"
    assert len(instance.get("/v1/traces?count=3").json()) == 3


def test_slow_requests_come_before_quick_ones(instance):
    slow = instance.infer("count", steps=[1_000_000_000]).parameters["trace_id"]
    instance.infer("count", steps=[1])
    own = [trace for trace in instance.get("/v1/traces").json() if roots(trace)[0]["name"] == "front"]
    seconds = [roots(trace)[0]["end_ns"] - roots(trace)[0]["start_ns"] for trace in own]
    assert seconds == sorted(seconds, reverse=True)
    assert slow in [trace["trace_id"] for trace in own[:5]]
