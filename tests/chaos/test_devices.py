"""A device that is lost costs its lane and no request; an executable that fails costs no lane; clocks may jump."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest

from benchmarks.gameday.fates import OddClock
from benchmarks.gameday.readiness import Readiness
from tests.chaos.load import Load, within
from tests.chaos.test_processes import RESTART_S_MAX, pid_of, renewed
from tests.instance_process import InstanceProcess, wait_until
from tests.warmpool.stopped_lane import StoppedLane
from warmpool.circuit import FAILURES_MAX, TRIAL_S_MAX
from warmpool.lane_memory import SHORTAGES_MAX

DAY_S = 24 * 3600


class OddInstance(InstanceProcess):
    command = (sys.executable, "-m", "tests.chaos.odd_process")


@pytest.fixture
def device(tmp_path):
    """A folder in which files are troubles."""
    (tmp_path / "device").mkdir()
    return tmp_path / "device"


@pytest.fixture
def clock(tmp_path):
    return OddClock(tmp_path / "clock")


@pytest.fixture
def instance(own_store, tmp_path, device, clock):
    # One thread: or the zygote would be no fork of a process that is odd.
    environment = {"OPENBLAS_NUM_THREADS": "1", "ODD_DEVICE": str(device), **clock.environment}
    with OddInstance(own_store, tmp_path / "log", **environment) as running:
        running.wait_warm()
        yield running


def ends(instance):
    """How many processes of lanes ended of what, of all lanes together."""
    return [end for lane in instance.status()["lanes"] for end, count in lane["ended"].items() for _ in range(count)]


def ended(instance, count):
    return len(ends(instance)) == count


def is_whole(instance):
    return all(lane["state"] == "warm" and not lane["cold"] for lane in instance.status()["lanes"])


def test_a_device_that_is_lost_now_and_then_costs_its_lane_and_nobody_an_answer(instance, device, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        for turn in range(3):
            load.wait_for(30)
            (device / f"lose-{turn}").touch()
            wait_until(partial(ended, instance, turn + 1))
            within(RESTART_S_MAX, partial(is_whole, instance))
        load.wait_for(30, "primary")
    load.check()
    assert ends(instance) == ["device_lost"] * 3
    assert readiness.contradictions == []
    assert "its device is lost: the executable failed: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS" in instance.log


def test_a_lane_whose_memory_is_gone_is_replaced_and_costs_nobody_an_answer(instance, device, minimum):
    pid = pid_of(instance, "primary")
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        load.wait_for(30)
        (device / f"short-{pid}").touch()
        wait_until(partial(ended, instance, 1))
        within(RESTART_S_MAX, partial(is_whole, instance))
        load.wait_for(30, "primary")
    load.check()
    assert instance.lane("primary")["ended"] == {"out_of_memory": 1}
    assert instance.lane("primary")["memory"]["shortages"] >= SHORTAGES_MAX
    assert readiness.contradictions == []


def test_an_executable_that_fails_costs_no_lane_and_its_batch_runs_elsewhere(instance, device, minimum):
    pids = [pid_of(instance, name) for name in ("primary", "cpu")]
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        for turn in range(3):
            load.wait_for(30)
            (device / f"fail-{turn}").touch()
            wait_until(lambda: not [*device.iterdir()])
        load.wait_for(30)
    load.check()
    assert readiness.contradictions == []
    assert [pid_of(instance, name) for name in ("primary", "cpu")] == pids
    assert ends(instance) == []


def test_a_device_that_stays_lost_opens_the_circuit_and_is_tried_again_and_found_back(instance, device, minimum):
    """Here both lanes have it, so that nobody can be served meanwhile: then callers are told so, and to come again.

    What has run on two lanes that died of it fails: of two callers one at most for each that died.
    """
    with Readiness(instance, minimum) as readiness, Load(instance, callers=2) as load:
        load.wait_for(30)
        (device / "lost").touch()
        wait_until(lambda: instance.lane("primary")["circuit"]["state"] == "open", RESTART_S_MAX + 30)
        status = instance.status()
        assert not status["ready"]
        assert instance.gauge("warmpool_lane_circuit_open", lane="primary") == 1
        (device / "lost").unlink()
        within(RESTART_S_MAX + TRIAL_S_MAX, partial(is_whole, instance))
        load.wait_for(30, "primary")
    counts = load.check(allowed={500, 503})
    assert counts[200] >= 60
    assert counts[500] <= len(ends(instance))
    assert all("it was run 2 times" in answer.said for answer in load.answers if answer.status == 500)
    assert readiness.contradictions == []
    assert readiness.looks[False]
    assert len([end for end in ends(instance) if end == "device_lost"]) >= FAILURES_MAX


@pytest.mark.parametrize("jumps", [(DAY_S, 0, -DAY_S), (-DAY_S, 10 * 365 * DAY_S, 1)], ids=["forth", "back"])
def test_whatever_the_clock_says_answers_are_right_and_nobody_is_ended(instance, clock, jumps, minimum):
    with Readiness(instance, minimum) as readiness, Load(instance) as load:
        load.wait_for(50)
        for jump in jumps:
            with StoppedLane(instance) as lane:  # so that it has a batch meanwhile
                lane.wait_busy()
                clock.jump(jump)
            load.wait_for(100)
        pid = pid_of(instance, "primary")
        os.kill(pid, 9)
        wait_until(partial(renewed, instance, "primary", pid))
        within(RESTART_S_MAX, partial(is_whole, instance))
        load.wait_for(50, "primary")
    load.check()
    assert ends(instance) == ["killed"]
    assert readiness.contradictions == []
    assert readiness.looks[True]
