"""A store that is away for a moment, or changes under a start, costs that moment and never makes a wrong answer."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

from tests.instance_process import InstanceProcess, serving, wait_until
from tests.tiny import METHODS

X = np.array([[1, 2, 3, 4]], np.float32)
LANES = ("primary", "cpu")


def kill_lanes(instance):
    for name in LANES:
        os.kill(instance.lane(name)["pid"], signal.SIGKILL)


def back(instance, name, restarts):
    """Whether a lane was started again and holds all that it is to hold."""
    lane = instance.lane(name)
    return lane["restarts"] > restarts and lane["planned"] and lane["warm"] == lane["planned"]


@pytest.mark.parametrize("part", ["", "executables", "models"])
def test_lanes_that_start_while_the_store_is_away_are_whole_once_it_is_back(own_store, tmp_path, part):
    with serving(own_store, tmp_path / "log") as instance:
        planned = {name: instance.lane(name)["planned"] for name in LANES}
        (own_store / part).rename(tmp_path / "away")
        kill_lanes(instance)
        wait_until(lambda: all(lane["restarts"] and lane["state"] == "warm" for lane in instance.status()["lanes"]))
        status = instance.status()
        assert [lane["warm"] for lane in status["lanes"]] == [0, 0]
        assert not status["ready"]
        assert "not published" not in str(status)
        assert instance.infer_reply("tiny:predict", {}).status == 400
        (tmp_path / "away").rename(own_store / part)
        wait_until(lambda: all(back(instance, name, 0) for name in LANES))
        assert {name: instance.lane(name)["planned"] for name in LANES} == planned
        assert np.array_equal(instance.infer("predict", x=X).outputs["y"], METHODS["predict"].reference(x=X)["y"])
        assert instance.lane("primary")["restarts"] == 1


class OddInstance(InstanceProcess):
    command = (sys.executable, "-m", "tests.warmpool.odd_instance")


def test_requests_are_answered_while_a_lane_waits_for_a_store_that_does_not_answer(own_store, tmp_path):
    stalled = own_store.with_name(f"{own_store.name}.stalled")
    with OddInstance(own_store, tmp_path / "log", ODD_STORE="stalling") as instance:
        instance.wait_warm()
        stalled.touch()
        os.kill(instance.lane("primary")["pid"], signal.SIGKILL)
        wait_until(own_store.with_name(f"{own_store.name}.asked").exists)
        outputs, parameters = instance.infer("predict", x=X)
        assert np.array_equal(outputs["y"], METHODS["predict"].reference(x=X)["y"])
        assert parameters["lane"] == "cpu"
        assert instance.lane("primary")["state"] == "starting"
        stalled.unlink()
        instance.wait_warm()
        assert instance.lane("primary")["restarts"] == 1


def test_a_lane_for_which_no_plan_can_be_made_is_started_again_until_one_can(own_store, tmp_path):
    broken = own_store.with_name(f"{own_store.name}.broken")
    with OddInstance(own_store, tmp_path / "log", ODD_STORE="stalling") as instance:
        instance.wait_warm()
        broken.touch()
        os.kill(instance.lane("primary")["pid"], signal.SIGKILL)
        wait_until(lambda: instance.lane("primary")["restarts"] > 1)
        assert "a mistake of ours" in instance.log
        broken.unlink()
        instance.wait_warm()


def test_a_model_published_for_the_machine_while_the_instance_runs_is_served(own_store, tmp_path):
    (target,) = (own_store / "models" / "second" / "1" / "targets").iterdir()
    target.rename(tmp_path / "target")
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: instance.lane("primary").get("state") == "warm")
        assert "not published for this kind of machine" in instance.lane("primary")["missing"]["second/1"]
        (tmp_path / "target").rename(target)
        wait_until(lambda: instance.status()["models"]["second"]["ready"])
        assert instance.infer_reply("second:predict", {}).status == 400
        assert instance.lane("primary")["restarts"] == 0


# Python runs this at its start: the front's verification of weights, not its forks' mapping, then waits for a file.
GATE = """
import os, pathlib, sys, time
if "serve" in sys.orig_argv:
    front, plain = os.getpid(), pathlib.Path.open
    def gated(self, *arguments, **named):
        verifying = os.getpid() == front and sys._getframe(1).f_code.co_filename.endswith("blob.py")
        while verifying and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.005)
        return plain(self, *arguments, **named)
    pathlib.Path.open = gated
"""


def test_weights_that_are_replaced_between_a_lane_and_their_verification_are_mapped_again(own_store, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(GATE)
    environment = {"PYTHONPATH": str(tmp_path), "GATE": str(tmp_path / "gate")}
    blobs = list((own_store / "weights").iterdir())
    good = {blob: blob.read_bytes() for blob in blobs}
    for blob, content in good.items():
        (tmp_path / "damaged").write_bytes(bytes(len(content)))
        (tmp_path / "damaged").replace(blob)
    with InstanceProcess(own_store, tmp_path / "log", **environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: instance.lane("primary").get("warm"))
        for blob, content in good.items():
            (tmp_path / "repaired").write_bytes(content)
            (tmp_path / "repaired").replace(blob)
        (tmp_path / "gate").touch()
        instance.wait_warm()
        assert instance.lane("primary")["restarts"] == 1
        assert "weights were replaced" in instance.log
        assert np.array_equal(instance.infer("predict", x=X).outputs["y"], METHODS["predict"].reference(x=X)["y"])


@pytest.mark.parametrize("part", ["weights", "models/tiny/1/manifest.json", "models/tiny/serving.json"])
def test_a_model_that_cannot_be_read_at_the_start_is_served_as_soon_as_it_can(own_store, tmp_path, part):
    damaged = own_store / part
    damaged.rename(tmp_path / "good")
    if part.endswith(".json"):
        damaged.write_text("{")
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: instance.status()["problems"].get("tiny"))
        damaged.unlink(missing_ok=True)
        (tmp_path / "good").rename(damaged)
        wait_until(lambda: instance.status()["models"].get("tiny", {}).get("ready"))
        assert instance.status()["problems"] == {}
        assert np.array_equal(instance.infer("predict", x=X).outputs["y"], METHODS["predict"].reference(x=X)["y"])
        assert instance.lane("primary")["restarts"] == 0
