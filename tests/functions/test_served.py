"""A function behind a real functions-framework in a process of its own, as it is deployed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.functions.fake_instance import Say
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
START_S_MAX = 60


def post(url, body, headers=()):
    request = urllib.request.Request(url, body, dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, dict(response.headers), json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.load(error)


def wait_until(condition):
    """Poll a condition that another process brings about."""
    deadline_s = time.monotonic() + START_S_MAX
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def served(instance_url, log_path, *flags, **environment):
    """Run the function of doubling.py, and yield its URL."""
    port = free_port()
    command = [sys.executable, "-m", "functions_framework", "--target", "doubling", "--host", "127.0.0.1"]
    command += ["--source", str(ROOT / "tests/functions/doubling.py"), "--port", str(port), *flags]
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_", "FUNCTION_"))
    }
    kept |= {"PYTHONPATH": str(ROOT), "WARMPOOL_URLS": instance_url, **environment}
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=kept, stdout=log, stderr=log)
    try:
        wait_until(lambda: listens(port) or process.poll() is not None)
        assert process.poll() is None, log_path.read_text()
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.parametrize("flags", [(), ("--asgi",)])
def test_a_function_answers_callers_through_functions_framework(instance, tmp_path, flags):
    log_path = tmp_path / "log"
    with served(instance.url, log_path, *flags) as url:
        status, headers, answer = post(url, b"[[1, 2], [3, 4]]")
        assert (status, answer["doubled"]) == (200, [[2, 4], [6, 8]])
        assert answer["served"]["version"] == "7"
        assert len(headers["x-warmpool-trace-id"]) == 32

        assert post(url, b"{")[0] == 400
        assert post(url, b'"text"')[2] == {"error": "body: got 'text'; allowed: a list of numbers"}

        instance.script.append(Say(429, headers=("retry-after: 7",)))
        status, headers, _ = post(url, b"[1]")
        assert (status, headers["retry-after"]) == (429, "7")

        status, headers, answer = post(url, b'"secret"')
        assert status == 500
        assert answer == {"error": "internal error", "trace_id": headers["x-warmpool-trace-id"]}
    assert "hunter2" in log_path.read_text()


def test_the_spans_of_a_request_reach_the_collector_and_sum_to_the_whole(instance, tmp_path):
    with served(instance.url, tmp_path / "log", OTEL_EXPORTER_OTLP_ENDPOINT=instance.url) as url:
        trace_id = post(url, b"[1, 2]")[1]["x-warmpool-trace-id"]
        wait_until(lambda: any(span.name == "function" for span in exported(instance)))
    spans = {span.name: span for span in exported(instance)}
    assert spans.keys() == {"function", "function.pre", "pool.infer", "function.post"}
    assert {span.trace_id.hex() for span in spans.values()} == {trace_id}
    whole = spans.pop("function")
    assert {span.parent_span_id for span in spans.values()} == {whole.span_id}
    parts_ns = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in spans.values())
    assert parts_ns == pytest.approx(whole.end_time_unix_nano - whole.start_time_unix_nano, rel=0.03)


def test_a_collector_that_is_away_disturbs_nobody(instance, dead_url, tmp_path):
    log_path = tmp_path / "log"
    with served(instance.url, log_path, OTEL_EXPORTER_OTLP_ENDPOINT=dead_url) as url:
        assert all(post(url, b"[1]")[0] == 200 for _ in range(20))
        wait_until(log_path.read_text)
        assert all(post(url, b"[1]")[0] == 200 for _ in range(20))
    assert len(log_path.read_text().splitlines()) == 1


def exported(instance):
    bodies = [received.body for received in instance.to("/v1/traces")]
    return [
        span
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
