"""The stack on this machine, by the commands that make runs. It comes up once, and again after tests that end it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.layout import CHECKED_FOLDERS
from examples.loopback import get_or_post
from tests.infra.local_stack import COMMAND_S_MAX, ROOT, StackProcesses, Tripled
from tests.instance_process import alive, descendants, wait_until

pytestmark = pytest.mark.slow

TRACE = "5ca1ab1e" * 4
CALLER = "c0ffee00" * 2


@pytest.fixture(scope="module")
def brought_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcesses]:
    stack = StackProcesses(tmp_path_factory.mktemp("stack") / ("long" * 30))
    with stack.taken_down_in_the_end() as down:
        try:
            stack.up()
            yield stack
        finally:
            said, why = down.communicate(timeout=COMMAND_S_MAX)
    assert down.returncode == 0, why
    assert json.loads(said)["removed"]
    assert not stack.folder.exists()
    stack.assert_gone()


@pytest.fixture
def stack(brought_up: StackProcesses) -> StackProcesses:
    """Up, whatever the test before did."""
    brought_up.up()
    return brought_up


def artifacts(stack: StackProcesses) -> dict[str, str]:
    """What is published, with digests."""
    return {name: digest for name, digest in stack.objects().items() if name.startswith(CHECKED_FOLDERS)}


def answered_by(stack: StackProcesses, port: str) -> float:
    """How many requests an instance has answered, 0 while it is away."""
    try:
        with get_or_post(stack.url(port, "/metrics")) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return 0
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("warmpool_requests_by_step_total{"))


def test_an_instance_that_is_killed_under_load_loses_no_request_and_comes_back(stack: StackProcesses) -> None:
    killed = stack.process("instance-1")
    with Tripled(stack) as callers:
        callers.wait_more(20)
        assert not callers.wrong
        os.kill(killed["pid"], signal.SIGSTOP)  # so that it has requests when it dies
        callers.wait_stuck()
        os.kill(killed["pid"], signal.SIGKILL)
        wait_until(lambda: not alive(killed["pid"]))
        callers.wait_more(20)
        wait_until(lambda: callers.wrong or answered_by(stack, "http_port"), wait_s_max=120)
        callers.wait_more(20)
    assert not callers.wrong
    back = stack.process("instance-1")
    assert back["pid"] != killed["pid"]
    assert back["unready"] == ""
    stack.note()
    said = stack.run("logs", "--no-follow", "--lines", "100", "supervisor").stdout
    assert "supervisor   | " in said
    assert "exited: instance-1 (terminated by SIGKILL; not expected)" in said


def test_whatever_else_is_killed_comes_back_and_leaves_nothing_behind(stack: StackProcesses) -> None:
    before = {one["name"]: one["pid"] for one in stack.status()["processes"] if one["name"][:8] != "instance"}
    pids = {found for pid in before.values() for found in (pid, *descendants(pid))}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)))

    def back() -> bool:
        now = {one["name"]: one for one in stack.status()["processes"]}
        return all(now[name]["pid"] not in {0, pid} and not now[name]["unready"] for name, pid in before.items())

    wait_until(back, wait_s_max=120)
    assert stack.triple([4.0])[1]["tripled"] == [12.0]


def test_prometheus_scrapes_both_instances(stack: StackProcesses) -> None:
    if "prometheus" not in {one["name"] for one in stack.status()["processes"]} and not os.environ.get("CI"):
        pytest.skip("there is no Prometheus, and it cannot be downloaded")

    def seen() -> bool:
        result = stack.get("prometheus_port", "/api/v1/query?query=up==1")["data"]["result"]
        return {one["metric"]["instance"] for one in result} == {"instance-1", "instance-2"}

    wait_until(seen)


def test_a_request_reaches_the_receiver_as_one_trace(stack: StackProcesses) -> None:
    status, content = stack.triple([1.0, 2.0], traceparent=f"00-{TRACE}-{CALLER}-01")
    assert (status, content["tripled"], content["served"]["trace_id"]) == (200, [3.0, 6.0], TRACE)

    def whole() -> list:
        found = [one for one in stack.get("otlp_port", "/v1/traces?count=1000") if one["trace_id"] == TRACE]
        names = {span["name"] for one in found for span in one["spans"]}
        return found if {"function", "front", "run"} <= names else []

    (trace,) = wait_until(whole, wait_s_max=60)
    parents = {span["span_id"]: span["parent_id"] for span in trace["spans"]}
    assert [parent for parent in parents.values() if parent not in parents] == [CALLER]
    (front,) = (span for span in trace["spans"] if span["name"] == "front")
    assert front["attributes"]["service.instance.id"] in {"instance-1", "instance-2"}
    shown = subprocess.run(
        [
            str(Path(sys.executable).with_name("warmpool")),
            "traces",
            "--url",
            stack.url("otlp_port", ""),
            "--count=1000",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"trace {TRACE}" in shown.stdout


def test_a_stack_that_is_up_is_left_as_it_is_and_no_other_comes_up_there(stack: StackProcesses) -> None:
    before = {one["name"]: one["pid"] for one in stack.status()["processes"]}
    again = stack.run(*stack.up_arguments, "--json")
    assert "the stack is up already" in again.stderr
    told = json.loads(again.stdout)
    assert (told["folder"], told["store"], set(told["urls"])) == (str(stack.folder), "gs://warmpool", set(before))
    assert told["urls"]["functions"] == stack.url("port", "")
    other = stack.run(*stack.up_arguments, GCS_PORT="1")
    assert other.returncode == 1
    assert (
        other.stderr
        == f"stack: a stack is up already, and GCS_PORT is {stack.ports['gcs_port']}, not 1; `make down` first\n"
    )
    assert {one["name"]: one["pid"] for one in stack.status()["processes"]} == before
    refused = stack.run("down", "--destroy")
    assert refused.returncode == 1
    assert "needs CONFIRM=yes" in refused.stderr
    assert stack.triple([2.0])[1]["tripled"] == [6.0]


def test_what_a_killed_supervisor_ran_ends_and_the_stack_comes_up_again(stack: StackProcesses) -> None:
    before = artifacts(stack)
    stack.note()
    supervisor = int((stack.folder / "supervisord.pid").read_text())
    os.kill(supervisor, signal.SIGKILL)
    stack.assert_gone()
    status = stack.run("status")
    assert status.returncode == 1
    assert "no stack is up" in status.stdout
    assert "the last stack ended without `down`; nothing of it runs" in stack.up()
    assert artifacts(stack) == before
    assert stack.triple([5.0])[1]["tripled"] == [15.0]


def test_down_and_up_again_loses_no_artifact_and_compiles_nothing(stack: StackProcesses) -> None:
    before = artifacts(stack)
    assert {name.partition("/")[0] for name in before} >= {"executables", "programs", "weights", "models"}
    done = stack.run("down", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"folder": str(stack.folder), "ended": True, "removed": False}
    stack.assert_gone()
    assert [line.split()[1] for line in done.stderr.splitlines()][:3] in (
        ["functions", "instance-1", "instance-2"],
        ["functions", "instance-2", "instance-1"],
    )
    assert not (stack.folder / "copies").exists()  # of the instances' own disks
    command = stack.command(*stack.up_arguments, "--foreground")
    with subprocess.Popen(
        command, cwd=ROOT, env=stack.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as staying:
        try:
            assert staying.stdout is not None
            said = ""
            while "instances " not in said:
                line = staying.stdout.readline()
                assert line, said
                said += line
            stack.note()
            assert "nothing compiled" in said
            assert artifacts(stack) == before
            assert stack.triple([3.0])[1]["tripled"] == [9.0]
        finally:
            staying.terminate()
            rest, _ = staying.communicate(timeout=120)
        assert staying.returncode == 0, said + rest
    stack.assert_gone()


def test_a_taken_port_is_named_with_the_setting_that_changes_it_and_nothing_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        stack = StackProcesses(tmp_path / "folder", otlp_port=port)
        done = stack.run(*stack.up_arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"stack: OTLP_PORT: port {port} cannot be had")
    assert line.endswith("choose another with OTLP_PORT=...")
    assert not (stack.folder / "state.json").exists()


def test_what_the_system_refuses_is_one_line_and_leaves_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml" / "folder").mkdir(parents=True)  # a file is to be written there
    stack = StackProcesses(tmp_path)
    done = stack.run(*stack.up_arguments)
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith("stack: [Errno 21] Is a directory: ")
    assert not (tmp_path / "state.json").exists()
