"""`warmpool serve` from exec to exit: what it says when it cannot start, how it comes up and how it goes down."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.instance_process import (
    InstanceProcess,
    children_of,
    serving,
    tensors,
    wait_until,
    zygote_gate,
)
from tests.ports import free_port
from tests.warmpool.stopped_lane import StoppedLane
from warmpool.manifest import Serving, encode

STOP_S_MAX = 60.0


def refused(*flags, **environment):
    """What a `warmpool serve` that cannot start prints and exits with."""
    command = [sys.executable, "-m", "warmpool.cli", "serve", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "", **environment}
    )


def assert_one_line(result, *words):
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("warmpool serve: ")
    for word in words:
        assert word in lines[0]


@pytest.fixture
def taken():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


@pytest.fixture
def gated(tiny_store, tmp_path):
    """An instance whose zygote does not start before `gate` exists."""
    gate, environment = zygote_gate(tmp_path)
    with InstanceProcess(tiny_store, tmp_path / "log", **environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        yield instance, gate
        gate.touch()


# What keeps it from starting


def test_a_taken_port_is_told_in_one_line_with_the_flag_that_chooses_another(tiny_store, taken):
    assert_one_line(refused("--store", str(tiny_store), "--port", taken, "--grpc-port", "0"), taken, "--port")
    other = str(free_port())
    assert_one_line(refused("--store", str(tiny_store), "--port", other, "--grpc-port", taken), taken, "--grpc-port")


def test_a_second_instance_on_the_same_port_leaves_the_first_alone(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log") as first:
        assert_one_line(refused("--store", str(tiny_store), "--port", str(first.port), "--grpc-port", "0"))
        assert first.infer("predict", x=np.ones((1, 4))).outputs["sum"].tolist() == [4.0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ("store", "--store", "WARMPOOL_STORE")),
        (("--store", ""), ("store",)),
        (("--store", "s3://bucket/folder"), ("s3", "file:///")),
        (("--port", "many"), ("port", "many", "whole number")),
        (("--port", "65536"), ("port", "65536", "65535")),
        (("--port", "-1"), ("port", "-1")),
        (("--port", "18761", "--grpc-port", "18761"), ("grpc_port", "18761")),
        (("--deadline-ms", "0"), ("deadline_ms", "more than 0")),
        (("--otlp-endpoint", "nonsense"), ("otlp_endpoint", "nonsense", "http://HOST")),
        (("--body-bytes-max", str(2**31)), ("body_bytes_max", str(2**31 - 1))),
        (("--drain-s-max", "nan"), ("drain_s_max",)),
        (("--queue-rows-max", "-1"), ("queue_rows_max",)),
        (("--body-bytes-max", "1.5"), ("body_bytes_max", "whole number")),
        (("--host", "no-such-host.invalid"), ("no-such-host.invalid",)),
    ],
)
def test_a_setting_that_is_not_allowed_is_told_in_one_line(tiny_store, flags, words):
    given = () if not flags or "--store" in flags else ("--store", str(tiny_store))
    ports = () if "--port" in flags else ("--port", str(free_port()), "--grpc-port", "0")
    assert_one_line(refused(*given, *ports, *flags), *words)


def test_a_setting_in_the_environment_is_told_by_its_name_too(tiny_store):
    assert_one_line(refused(WARMPOOL_STORE=str(tiny_store), PORT="http"), "port", "http")


# How it comes up


def test_it_is_live_at_once_and_not_ready_before_its_minimum_set_is_warm(gated):
    instance, gate = gated
    ready = instance.get("/v2/health/ready")
    assert (ready.status, ready.json()["ready"]) == (503, False)
    assert set(ready.json()["reasons"]) == {"tiny", "second"}
    assert instance.answers("/v2/models/tiny/ready") == 503
    assert instance.get("/v1/models/tiny").json()["model_version_status"][0]["state"] == "LOADING"
    assert instance.gauge("warmpool_ready") == 0
    lanes = instance.status()["lanes"]
    assert [(lane["name"], lane["state"], lane["warm"]) for lane in lanes] == [
        ("primary", "starting", 0),
        ("cpu", "starting", 0),
    ]
    gate.touch()
    instance.wait_ready()
    assert instance.status()["models"]["tiny"]["ready"] is True
    assert instance.gauge("warmpool_ready") == 1
    for _ in range(3):
        assert instance.infer("predict", x=np.ones((1, 4))).parameters["cold"] is False


def test_a_request_before_anything_is_warm_waits_and_is_told_to_be_cold(gated):
    instance, gate = gated
    with ThreadPoolExecutor(4) as pool:
        early = [pool.submit(instance.infer, "predict", x=np.full((rows, 4), rows)) for rows in (1, 3, 8)]
        wait_until(lambda: instance.gauge("warmpool_rows_waiting") == 12)
        unknown = instance.infer_reply("nope", tensors("predict", {"x": np.ones((1, 4))}))
        hurried = instance.infer_reply(
            "tiny:predict", tensors("predict", {"x": np.ones((1, 4))}), headers={"x-warmpool-timeout-ms": "500"}
        )
        assert (unknown.status, hurried.status, hurried.headers["retry-after"]) == (404, 503, "1")
        gate.touch()
        for future, rows in zip(early, (1, 3, 8), strict=True):
            outputs, parameters = future.result()
            assert outputs["sum"].tolist() == [4.0 * rows] * rows
            assert parameters["cold"] is True


def test_a_request_at_the_first_moment_is_never_told_that_its_model_is_unknown(tiny_store, tmp_path):
    with InstanceProcess(tiny_store, tmp_path / "log") as instance:
        wait_until(lambda: connects(instance.port))
        given = tensors("predict", {"x": np.ones((1, 4))})
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: instance.infer_reply("tiny:predict", given), range(8)))
        assert [reply.status for reply in replies] == [200] * 8


# Python runs this at its start: who opens a file of the model `held` then waits for another one.
HELD = """
import os, time
plain = os.open
def gated(path, *arguments, **named):
    while "/held/1/" in str(path) and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.005)
    return plain(path, *arguments, **named)
os.open = gated
"""


def test_before_the_catalog_is_read_requests_wait_and_no_model_is_unknown(own_store, tmp_path):
    held = own_store / "models" / "held" / "1" / "manifest.json"
    held.parent.mkdir(parents=True)
    (held.parent.parent / "serving.json").write_bytes(encode(Serving(stable="1")))
    held.write_text("no manifest")
    (tmp_path / "sitecustomize.py").write_text(HELD)
    environment = {"PYTHONPATH": str(tmp_path), "GATE": str(tmp_path / "gate")}
    with InstanceProcess(own_store, tmp_path / "log", **environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        given = tensors("predict", {"x": np.ones((1, 4))})
        with ThreadPoolExecutor(8) as pool:
            names = ("tiny:predict", "tiny", "second", "held", "nope")
            patient = {name: pool.submit(instance.infer_reply, name, given) for name in names}
            rows = pool.submit(instance.post, "/v1/models/tiny:predict", {"instances": [{"x": [1] * 4}]})
            hurried = instance.infer_reply("tiny:predict", given, headers={"x-warmpool-timeout-ms": "50"})
            assert (hurried.status, hurried.headers["retry-after"]) == (503, "1")
            assert instance.get("/v2/health/ready").json()["reasons"] == {"": "the instance is starting"}
            assert [instance.answers(path) for path in ("/v1/started", "/v2/models/tiny/ready")] == [503, 503]
            assert not any(future.done() for future in (*patient.values(), rows))
            (tmp_path / "gate").touch()
            statuses = {name: future.result().status for name, future in patient.items()}
            assert statuses == {"tiny:predict": 200, "tiny": 200, "second": 200, "held": 503, "nope": 404}
            assert rows.result().json()["predictions"][0]["sum"] == 4.0
        wait_until(lambda: instance.answers("/v2/models/tiny/ready") == 200)
        assert instance.infer_reply("tiny:predict", given).status == 200
        assert instance.infer_reply("held", given).status == 503
        assert instance.infer_reply("nope", given).status == 404


def ready(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200


def status_of(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/v1/status")
        return json.loads(connection.getresponse().read())


def connects(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_started_without_standard_streams_it_serves_and_nothing_takes_their_numbers(tiny_store, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "warmpool.cli", "serve", "--allow-unsigned", "--store", str(tiny_store)]
    command += ["--port", str(port), "--grpc-port", "0"]
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]) as process:
        try:
            wait_until(lambda: connects(port) and ready(port))
            zygote, lane = status_of(port)["zygote"]["pid"], status_of(port)["lanes"][0]["pid"]
            for pid in (process.pid, zygote, lane):
                assert {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)} == {"/dev/null"}
        finally:
            process.terminate()
        assert process.wait(STOP_S_MAX) == 0


_SUBREAPER = """
import ctypes, sys
if "serve" in sys.orig_argv:
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become its children, as they do of process 1
"""


def test_lanes_that_lost_their_zygote_are_buried_where_the_instance_is_their_last_parent(tiny_store, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_SUBREAPER)
    with serving(tiny_store, tmp_path / "log", PYTHONPATH=os.pathsep.join((str(tmp_path), *sys.path))) as instance:
        front, lane = instance.process.pid, instance.lane("primary")["pid"]
        zygote = instance.status()["zygote"]["pid"]
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: lane in children_of(front))
        os.kill(lane, signal.SIGKILL)
        wait_until(lambda: not {lane, zygote} & set(children_of(front)))
        instance.wait_warm()
        assert instance.infer("predict", x=np.ones((1, 4))).outputs["sum"].tolist() == [4.0]


# How it goes down


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_running_requests_get_their_answers_and_it_exits_0(tiny_store, tmp_path, number):
    with serving(tiny_store, tmp_path / "log") as instance, ThreadPoolExecutor(16) as pool:
        with StoppedLane(instance) as lane:
            running = pool.submit(instance.infer, "count", steps=[3])
            lane.wait_busy()
            waiting = [pool.submit(instance.infer, "predict", x=np.full((1, 4), index)) for index in range(8)]
            wait_until(lambda: instance.gauge("warmpool_rows_waiting") == len(waiting))
            instance.process.send_signal(number)
            wait_until(lambda: instance.answers("/v2/health/ready") in {0, 503})
        assert running.result().outputs["counted"].tolist() == [3]
        assert [future.result().outputs["sum"].tolist() for future in waiting] == [[4.0 * index] for index in range(8)]
        assert instance.process.wait(STOP_S_MAX) == 0


def test_an_idle_connection_does_not_hold_it_up(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log", "--drain-s-max", "600") as instance:  # what that holds up, a test sees
        connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read()
            assert instance.stop() == 0


def test_a_request_longer_than_the_limit_does_not_hold_it_up(tiny_store, tmp_path):
    with (
        serving(tiny_store, tmp_path / "log", "--drain-s-max", "1") as instance,
        ThreadPoolExecutor(1) as pool,
    ):
        lane = StoppedLane(instance)
        lane.stop()
        endless = pool.submit(instance.infer_reply, "tiny:count", tensors("count", {"steps": [1]}))
        lane.wait_busy()
        assert instance.stop() == 0
        assert (endless.result().status, endless.result().headers["retry-after"]) == (503, "1")
        assert "Traceback" not in instance.log


def test_a_signal_while_it_starts_ends_it_too(gated):
    instance, gate = gated
    instance.status()
    instance.process.send_signal(signal.SIGTERM)
    gate.touch()
    assert instance.process.wait(STOP_S_MAX) == 0


def test_a_second_signal_changes_nothing(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log") as instance, ThreadPoolExecutor(1) as pool:
        with StoppedLane(instance) as lane:
            running = pool.submit(instance.infer, "count", steps=[3])
            lane.wait_busy()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                instance.process.send_signal(number)
        assert running.result().outputs["counted"].tolist() == [3]
        assert instance.process.wait(STOP_S_MAX) == 0
