"""Processes of an instance die under load: no request is lost, none is wrong, and everything comes back."""

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.instance_process import (
    InstanceProcess,
    alive,
    children_of,
    descendants,
    inferred,
    serving,
    tensors,
    wait_until,
)
from tests.warmpool.stopped_lane import StoppedLane
from warmpool import wire

LONG_STEPS = 2**31 - 2  # more than a second
PATIENT = {wire.TIMEOUT_HEADER: "600000"}  # nobody is refused because a slow machine might answer late


@pytest.fixture
def instance(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log") as running:
        yield running


class Load:
    """Callers that ask one after the other until told to stop, and check every answer."""

    def __init__(self, instance, callers=16):
        self.lanes = []
        self.wrong = []
        self.failed = []
        self._instance = instance
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(callers)
        self._futures = [self._executor.submit(self._ask_on) for _ in range(callers)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._executor.shutdown()
        for future in self._futures:
            future.result()

    @property
    def answered(self):
        return len(self.lanes)

    def wait_for(self, more):
        before = self.answered
        wait_until(lambda: self.answered >= before + more)

    @staticmethod
    def _question(number):
        """A method, its inputs, one of its outputs, and what that has to be."""
        if number % 8 == 0:
            steps = [10_000_000 + number]
            return "count", {"steps": steps}, "counted", steps
        rows = 1 + number % 11
        return "predict", {"x": np.full((rows, 4), number)}, "sum", [4.0 * number] * rows

    def _ask_on(self):
        while not self._stopping.is_set():
            number = next(self._numbers)
            name, inputs, output, expected = self._question(number)
            reply = self._instance.infer_reply(f"tiny:{name}", tensors(name, inputs), headers=PATIENT)
            if reply.status != 200:
                self.failed.append((reply.status, reply.body))
                continue
            answer = inferred(reply)
            self.lanes.append(answer.parameters["lane"])
            if answer.outputs[output].tolist() != expected:
                self.wrong.append(number)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def warm_again(instance, name, killed):
    """Wait for a new warm process of a lane; seconds since the call."""
    started_s = time.monotonic()

    def back():
        lane = instance.lane(name)
        return lane["pid"] not in {None, killed} and lane["state"] == "warm"

    wait_until(back)
    return time.monotonic() - started_s


def test_the_primary_lane_dies_under_load_and_no_request_is_lost(instance, record_property):
    before = instance.lane("primary")["pid"]
    with Load(instance) as load:
        load.wait_for(100)
        kill(before)
        restart_s = warm_again(instance, "primary", before)
        load.wait_for(200)
    record_property("restart_s", restart_s)
    assert (load.wrong, load.failed) == ([], [])
    assert {"primary", "cpu"} <= set(load.lanes)
    assert instance.lane("primary")["restarts"] == 1
    assert instance.answers("/v2/health/ready") == 200


def test_the_cpu_lane_dies_under_load_and_comes_back(instance):
    before = instance.lane("cpu")["pid"]
    with Load(instance) as load:
        load.wait_for(50)
        kill(before)
        warm_again(instance, "cpu", before)
        load.wait_for(50)
    assert (load.wrong, load.failed) == ([], [])
    assert set(load.lanes) == {"primary"}


def test_both_lanes_die_at_once_and_what_waits_is_answered_by_the_next(instance):
    primary, cpu = (instance.lane(name)["pid"] for name in ("primary", "cpu"))
    with Load(instance) as load:
        load.wait_for(50)
        kill(primary)
        kill(cpu)
        warm_again(instance, "primary", primary)
        warm_again(instance, "cpu", cpu)
        load.wait_for(100)
    assert (load.wrong, load.failed) == ([], [])


def test_the_zygote_dies_and_lanes_serve_on_and_later_ones_come_from_the_next(instance):
    status = instance.status()
    zygote, lanes = status["zygote"]["pid"], [lane["pid"] for lane in status["lanes"]]
    with Load(instance) as load:
        load.wait_for(50)
        kill(zygote)
        wait_until(lambda: instance.status()["zygote"]["pid"] != zygote)
        load.wait_for(50)
        assert [lane["pid"] for lane in instance.status()["lanes"]] == lanes
        kill(lanes[0])
        warm_again(instance, "primary", lanes[0])
        load.wait_for(50)
    assert (load.wrong, load.failed) == ([], [])


def test_the_zygote_and_a_lane_die_together(instance):
    zygote, primary = instance.status()["zygote"]["pid"], instance.lane("primary")["pid"]
    with Load(instance) as load:
        load.wait_for(50)
        kill(zygote)
        kill(primary)
        warm_again(instance, "primary", primary)
        load.wait_for(50)
    assert (load.wrong, load.failed) == ([], [])


def test_lanes_that_die_again_and_again_leak_neither_files_nor_processes(instance):
    folder = Path(f"/proc/{instance.process.pid}/fd")

    def files():
        with contextlib.suppress(FileNotFoundError):
            return len(list(folder.iterdir()))
        return 0

    instance.infer("predict", x=np.ones((1, 4)))
    before = files()
    for name in ("primary", "cpu", "primary", "cpu", "primary"):
        pid = instance.lane(name)["pid"]
        kill(pid)
        warm_again(instance, name, pid)
    with Load(instance) as load:
        load.wait_for(200)
    assert (load.wrong, load.failed) == ([], [])
    wait_until(lambda: files() <= before)

    def children():
        return {*children_of(instance.process.pid), *children_of(instance.status()["zygote"]["pid"])}

    wait_until(lambda: all(map(alive, children())))  # no zombies
    wait_until(lambda: len(children()) == 4)  # the zygote, two lanes, and the next process of either


def waiting(instance):
    """The process that the next lane to die is replaced by."""

    def others():
        status = instance.status()
        lanes = {lane["pid"] for lane in status["lanes"]}
        found = set(filter(alive, children_of(status["zygote"]["pid"]))) - lanes
        return found if len(found) == 1 and None not in lanes else set()

    return wait_until(others).pop()


def test_a_lane_that_dies_is_replaced_by_a_process_that_waits_and_then_another_one_does(instance):
    for name in ("primary", "cpu"):
        there, before = waiting(instance), instance.lane(name)["pid"]
        kill(before)
        warm_again(instance, name, before)
        assert instance.lane(name)["pid"] == there
    roots = set()
    for trace in instance.get("/v1/traces?cold=1").json():
        (root,) = [span for span in trace["spans"] if not span["parent_id"]]
        roots.add(root["name"])
        assert min(span["start_ns"] for span in trace["spans"]) == root["start_ns"], "what it did before is no part"
    assert roots >= {"primary lane start", "cpu lane start"}


def test_a_process_that_waits_and_stands_still_does_not_outlive_the_instance(instance):
    there = waiting(instance)
    os.kill(there, signal.SIGSTOP)
    assert instance.stop() == 0
    wait_until(lambda: not alive(there))


def test_a_process_that_waited_and_died_is_nobodys_death(instance):
    there, before = waiting(instance), instance.lane("primary")["pid"]
    kill(there)
    wait_until(lambda: there not in children_of(instance.status()["zygote"]["pid"]))
    kill(before)
    warm_again(instance, "primary", before)
    assert instance.lane("primary")["restarts"] == 1


def test_a_batch_whose_lanes_die_twice_fails_alone(instance):
    with ThreadPoolExecutor(2) as pool:
        doomed = pool.submit(instance.infer_reply, "tiny:count", tensors("count", {"steps": [LONG_STEPS]}))
        while not doomed.done():  # twice, or more often where a lane had not begun to run it
            for name in ("primary", "cpu"):
                pid = instance.gauge("warmpool_lane_busy", lane=name) and instance.lane(name)["pid"]
                if pid:
                    with contextlib.suppress(ProcessLookupError):  # it is dead, and that was not noticed
                        kill(pid)
        reply = doomed.result()
    assert reply.status == 500
    assert re.search("run 2 times", reply.json()["error"])
    assert instance.infer("predict", x=np.ones((1, 4))).outputs["sum"].tolist() == [4.0]
    for name in ("primary", "cpu"):
        warm_again(instance, name, None)


def test_status_is_told_while_a_lane_dies(instance):
    lane = StoppedLane(instance)
    lane.stop()
    with ThreadPoolExecutor(8) as pool:
        slow = pool.submit(instance.infer, "count", steps=[3])
        lane.wait_busy()
        asked = [pool.submit(instance.get, "/v1/status") for _ in range(4)]
        wait_until(lambda: any(future.running() for future in asked))
        kill(lane.pid)
        assert [future.result().status for future in asked] == [200] * 4
        assert slow.result().outputs["counted"].tolist() == [3]


def test_the_front_dies_and_takes_along_its_zygote_its_lanes_and_the_process_that_waits(tiny_store, tmp_path):
    instance = InstanceProcess(tiny_store, tmp_path / "log")
    try:
        instance.wait_warm()
        pids = wait_until(lambda: len(found := descendants(instance.process.pid)) > len(instance.pids) and found)
        assert len(instance.pids) == 3
        assert instance.pids < pids
    finally:
        instance.process.kill()
        instance.process.wait()
    wait_until(lambda: not any(map(alive, pids)))


def test_the_front_dies_while_it_starts_and_nothing_stays(tiny_store, tmp_path):
    instance = InstanceProcess(tiny_store, tmp_path / "log")
    try:
        pids = set(wait_until(lambda: children_of(instance.process.pid)))
    finally:
        instance.process.kill()
        instance.process.wait()
    wait_until(lambda: not any(map(alive, pids)))
