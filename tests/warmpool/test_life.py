"""From a start that takes long to an end that would: what probes say, what waits, what is told last, and how soon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.instance_process import InstanceProcess, alive, children_of, serving, tensors, wait_until, zygote_gate
from tests.ports import free_port
from tests.tiny import executable_file
from tests.warmpool.otlp_receiver import OtlpReceiver
from tests.warmpool.stopped_lane import StoppedLane
from tests.warmpool.test_grpc_app import connected, outputs_of, request
from tests.warmpool.test_serve import HELD
from warmpool import server
from warmpool.logged_spans import logged_traces
from warmpool.manifest import Serving, encode

X = tensors("predict", {"x": np.ones((1, 4))})
LIMIT_S = 100.0  # for what would take for ever


@pytest.fixture
def held(own_store, tmp_path):
    """An instance that does not come to the end of its catalog before `gate` exists, with gRPC on `port`."""
    serving_file = own_store / "models" / "held" / "serving.json"
    serving_file.parent.mkdir(parents=True)
    serving_file.write_bytes(encode(Serving(stable="1")))
    (serving_file.parent / "1").mkdir()
    (serving_file.parent / "1" / "manifest.json").write_text("no manifest")
    (tmp_path / "sitecustomize.py").write_text(HELD)
    gate, port = tmp_path / "gate", free_port()
    environment = {"PYTHONPATH": str(tmp_path), "GATE": str(gate)}
    flags = ("--grpc-port", str(port), "--drain-s-max", "1")
    with InstanceProcess(own_store, tmp_path / "log", *flags, **environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        yield SimpleNamespace(instance=instance, gate=gate, port=port)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Live, started, ready


def test_it_is_started_once_the_first_lane_has_tried_what_its_models_need(tiny_store, tmp_path):
    gate, environment = zygote_gate(tmp_path)
    with InstanceProcess(tiny_store, tmp_path / "log", **environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: instance.get("/v2/health/ready").json()["reasons"].keys() == {"tiny", "second"})
        assert (instance.answers("/v1/started"), instance.get("/v1/started").json()) == (503, {"started": False})
        gate.touch()
        wait_until(lambda: instance.answers("/v1/started") == 200)
        instance.wait_ready()
        assert instance.get("/v1/started").json() == {"started": True}


def test_it_has_started_though_a_model_cannot_become_ready(own_store, tmp_path, fingerprint):
    (own_store / executable_file("scale", {"length": 10}, fingerprint)).unlink()
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v1/started") == 200)
        assert instance.answers("/v2/health/ready") == 503
        assert instance.answers("/v2/health/live") == 200


def test_it_has_started_and_is_not_ready_where_nothing_is_published(tmp_path):
    (tmp_path / "store").mkdir()
    with InstanceProcess(tmp_path / "store", tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v1/started") == 200)
        assert instance.answers("/v2/health/ready") == 503


# What comes before it is known what is served


def test_a_call_before_the_catalog_is_read_waits_and_so_does_a_long_one(held):
    wait_until(lambda: listens(held.port))
    with connected(held.port) as stub:
        early = stub.ModelInfer.future(request("predict", x=np.ones((8, 4))))
        long = stub.ModelInfer.future(request("predict", x=np.ones((20_000, 4))))  # more than any request may have
        unknown = request("predict", x=np.ones((1, 4)))
        unknown.model_name = "nope"
        nobody = stub.ModelInfer.future(unknown)
        hurry = [("x-warmpool-timeout-ms", "50")]
        error = cast("Any", stub.ModelInfer.future(request("predict", x=np.ones((1, 4))), metadata=hurry).exception())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["retry-after"] == "1"
        assert not any(call.done() for call in (early, long, nobody))
        held.gate.touch()
        assert outputs_of(early.result())["sum"].tolist() == [4.0] * 8
        assert cast("Any", long.exception()).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert cast("Any", nobody.exception()).code() is grpc.StatusCode.NOT_FOUND


def test_a_caller_that_leaves_before_the_catalog_is_read_is_noticed(held):
    instance = held.instance
    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(instance.infer_reply, "tiny:predict", X)
        with socket.create_connection(("127.0.0.1", instance.port)) as leaving:
            leaving.sendall(b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
            assert instance.answers("/v2/health/live") == 200  # which is read after it
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close it with a reset
        wait_until(lambda: instance.gauge("warmpool_requests_total", model="", method="", status="499") == 1)
        held.gate.touch()
        assert staying.result().status == 200


# How it ends


def test_an_end_while_the_store_does_not_answer_does_not_wait_for_it(held):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(held.instance.infer_reply, "tiny:predict", X)
        hurried = held.instance.infer_reply("tiny:predict", X, headers={"x-warmpool-timeout-ms": "50"})
        assert hurried.status == 503
        children = children_of(held.instance.process.pid)
        held.instance.process.send_signal(signal.SIGTERM)
        assert held.instance.process.wait(LIMIT_S) == 0
        reply = waiting.result()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert len(children) >= 2  # a zygote, and what reads the store, too
        wait_until(lambda: not any(map(alive, children)))


def test_a_front_that_is_killed_while_the_store_does_not_answer_leaves_nothing_behind(held):
    children = children_of(held.instance.process.pid)
    assert len(children) >= 2
    held.instance.process.kill()
    held.instance.process.wait()
    wait_until(lambda: not any(map(alive, children)))
    held.instance.process.returncode = 0  # it was not to end in order


def trace_ids(bodies):
    return {
        span.trace_id.hex()
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def test_the_first_and_the_last_request_are_told_to_the_collector_before_the_end(tiny_store, tmp_path):
    with OtlpReceiver() as receiver:
        with serving(tiny_store, tmp_path / "log", "--otlp-endpoint", receiver.url) as instance:
            first = instance.infer("predict", x=np.ones((1, 4))).parameters["trace_id"]  # nothing is exported so soon
            with ThreadPoolExecutor(1) as pool, StoppedLane(instance) as lane:
                last = pool.submit(instance.infer, "count", steps=[3])
                lane.wait_busy()
                instance.process.send_signal(signal.SIGTERM)
                wait_until(lambda: instance.answers("/v2/health/ready") in {0, 503})
                lane.go_on()
                trace_id = last.result().parameters["trace_id"]
            assert instance.process.wait(LIMIT_S) == 0
        assert {first, trace_id} <= trace_ids(receiver.bodies)


def test_without_a_collector_spans_that_a_caller_samples_are_lines_that_are_drawn_again(tiny_store, tmp_path, capfd):
    callers = {flags: f"00-{flags * 16}-{'b' * 16}-{flags}" for flags in ("01", "02")}  # 02: not sampled
    with serving(tiny_store, tmp_path / "log", "--otlp-endpoint", "-", "--audit-log", "-") as instance:
        for traceparent in callers.values():
            instance.infer("predict", x=np.ones((1, 4)), headers={"traceparent": traceparent})
        assert instance.stop() == 0
    traces = {trace.trace_id: trace.spans for trace in logged_traces(capfd.readouterr().out).read(100)}
    assert {"front", "queue", "run", "respond"} <= {span.name for span in traces["01" * 16]}
    assert "02" * 16 not in traces
    assert any(spans[0].name == "cold start" for spans in traces.values())


def test_neither_a_collector_nor_a_lane_nor_a_zygote_that_hangs_holds_up_the_end(tiny_store, tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as hanging,
        serving(
            tiny_store,
            tmp_path / "log",
            *("--otlp-endpoint", f"http://127.0.0.1:{hanging.getsockname()[1]}", "--drain-s-max", "2"),
        ) as instance,
    ):
        instance.infer("predict", x=np.ones((1, 4)))
        zygote = instance.status()["zygote"]["pid"]
        for pid in (zygote, instance.lane("primary")["pid"]):
            os.kill(pid, signal.SIGSTOP)
        assert instance.stop() == 0


@pytest.mark.parametrize(("drain_s_max", "answering_s"), [(10.0, 7.0), (60.0, 57.0), (1.0, 0.7)])
def test_what_comes_after_the_last_answer_has_its_share_of_the_time_to_drain(drain_s_max, answering_s):
    instance = cast("Any", SimpleNamespace(settings=SimpleNamespace(drain_s_max=drain_s_max)))
    assert server._answering_s(instance) == pytest.approx(answering_s)


def test_all_processes_end_when_the_time_is_over_whatever_hangs():
    code = """
import subprocess, threading
from types import SimpleNamespace
from warmpool import server
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
server._exit_in(SimpleNamespace(pids=[child.pid]), 0.01)
threading.Event().wait()
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    wait_until(lambda: not alive(int(ended.stdout)))
