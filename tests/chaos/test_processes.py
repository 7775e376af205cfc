"""Processes of an instance are killed and stopped under load: each request is answered once and rightly, readiness is
what the status says, and everything is back within a bound."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.gameday.readiness import Readiness
from tests.chaos.load import Load, within
from tests.instance_process import InstanceProcess, serving, wait_until
from warmpool.circuit import FAILURES_MAX, TRIAL_S_MAX
from warmpool.watchdog import Limits

# The bounds are those of a machine that is much slower and busier than one that serves.
RESTART_S_MAX = 60.0
HANG_S_MAX = RESTART_S_MAX + 2 * (Limits().ask_every_s + Limits().answer_s_max)


@pytest.fixture
def instance(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log", "--run-s-max", "3") as running:
        yield running


def pid_of(instance: InstanceProcess, name: str) -> int:
    """Of a lane that is there, or of the zygote."""
    if name == "zygote":
        return int(instance.status()["zygote"]["pid"])
    return int(wait_until(lambda: instance.lane(name)["pid"]))


def renewed(instance: InstanceProcess, name: str, pid: int) -> bool:
    """Whether a lane is down or another process by now, or the zygote another."""
    if name == "zygote":
        return pid_of(instance, name) != pid
    return bool(instance.lane(name)["pid"] != pid)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def warm(instance: InstanceProcess, name: str, other_than: int) -> bool:
    lane = instance.lane(name)
    return lane["pid"] not in {None, other_than} and lane["state"] == "warm"


@pytest.mark.parametrize("name", ["primary", "cpu"])
def test_a_lane_is_killed_in_a_loop_until_its_circuit_opens_and_comes_back(instance, name, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        pid = 0
        for _ in range(FAILURES_MAX):
            pid = pid_of(instance, name)
            load.wait_for(20)
            send(pid, signal.SIGKILL)
            wait_until(partial(renewed, instance, name, pid))
        assert instance.lane(name)["circuit"]["state"] in {"open", "half-open"}
        assert instance.gauge("warmpool_lane_ended_total", lane=name, reason="killed") == FAILURES_MAX
        load.wait_for(100)
        within(RESTART_S_MAX + TRIAL_S_MAX, partial(warm, instance, name, pid))
        load.wait_for(20, "primary")
    load.check()
    assert readiness.contradictions == []
    assert readiness.looks[True]


def test_the_zygote_is_killed_in_a_loop_and_a_lane_that_dies_then_still_comes_back(instance, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        for _ in range(5):
            pid = pid_of(instance, "zygote")
            load.wait_for(20)
            send(pid, signal.SIGKILL)
            within(RESTART_S_MAX, partial(renewed, instance, "zygote", pid))
        zygote, lane = pid_of(instance, "zygote"), pid_of(instance, "primary")
        send(zygote, signal.SIGKILL)
        send(lane, signal.SIGKILL)
        within(RESTART_S_MAX, partial(warm, instance, "primary", lane))
        load.wait_for(20, "primary")
    load.check()
    assert readiness.contradictions == []
    assert instance.status()["zygote"]["ended"] == {"killed": 6}


def test_a_lane_that_stands_still_in_a_batch_is_replaced_and_its_batch_runs_on_the_other(instance, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        pid = pid_of(instance, "primary")
        load.wait_for(50)
        send(pid, signal.SIGSTOP)
        within(HANG_S_MAX, partial(warm, instance, "primary", pid))
        load.wait_for(20, "primary")
    load.check()
    assert "cpu" in {answer.lane for answer in load.answers}
    assert instance.lane("primary")["ended"] in ({"run_hung": 1}, {"silent": 1})
    assert readiness.contradictions == []


def test_both_lanes_stand_still_and_everybody_is_answered_by_the_next(instance, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        pids = {name: pid_of(instance, name) for name in ("primary", "cpu")}
        load.wait_for(50)
        for pid in pids.values():
            send(pid, signal.SIGSTOP)
        for name, pid in pids.items():
            within(HANG_S_MAX, partial(warm, instance, name, pid))
        load.wait_for(50)
    load.check()
    assert readiness.contradictions == []


@pytest.mark.slow
def test_lanes_that_stand_still_while_nobody_asks_are_found_by_being_asked(instance):
    pids = {name: pid_of(instance, name) for name in ("primary", "cpu")}
    for pid in pids.values():
        send(pid, signal.SIGSTOP)
    for name, pid in pids.items():
        within(HANG_S_MAX, partial(warm, instance, name, pid))
        assert instance.lane(name)["ended"] == {"silent": 1}
    with Load(instance) as load:
        load.wait_for(50)
    load.check()


@pytest.mark.slow
def test_a_lane_is_killed_while_the_zygote_stands_still_which_would_have_told_of_it(instance, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        zygote, lane = pid_of(instance, "zygote"), pid_of(instance, "primary")
        load.wait_for(20)
        send(zygote, signal.SIGSTOP)
        send(lane, signal.SIGKILL)
        within(HANG_S_MAX, partial(warm, instance, "primary", lane))
        load.wait_for(50, "primary")
    load.check()
    assert readiness.contradictions == []
    assert pid_of(instance, "zygote") != zygote
    assert instance.status()["zygote"]["ended"] == {"silent": 1}


def test_a_whole_instance_that_stood_still_ends_none_of_its_lanes(instance, minimum):
    """As where a platform gives it no processor between requests: nobody had a chance to answer."""
    status = instance.status()
    pids = [instance.process.pid, status["zygote"]["pid"], *(lane["pid"] for lane in status["lanes"])]
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        load.wait_for(50)
        for pid in pids:
            send(pid, signal.SIGSTOP)
        for pid in pids:
            assert stands_still(pid)
        time.sleep(5.0)  # longer than a run may take; what stands still brings about nothing to wait for
        for pid in reversed(pids):
            send(pid, signal.SIGCONT)
        load.wait_for(100)
    load.check()
    assert readiness.contradictions == []
    assert [lane["ended"] for lane in instance.status()["lanes"]] == [{}, {}]
    assert instance.status()["zygote"] == {"pid": status["zygote"]["pid"], "ended": {}}


def stands_still(pid: int) -> bool:
    return bool(wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"))
