"""A store that is away for a moment, or changes under a start, costs that moment and never makes a wrong answer."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from cache.local_store import LocalStore
from tests.instance_process import InstanceProcess, inferred, serving, tensors, wait_until
from tests.tiny import BIAS, MATRIX, METHODS, publish_tiny

X = np.array([[1, 2, 3, 4]], np.float32)
LANES = ("primary", "cpu")


def kill_lanes(instance):
    for name in LANES:
        os.kill(instance.lane(name)["pid"], signal.SIGKILL)


def has_tried(instance, name, restarts):
    """Whether a lane was started again and has tried all that it is to hold."""
    lane = instance.lane(name)
    return lane["restarts"] > restarts and lane["state"] == "warm"


def back(instance, name, restarts):
    """Whether a lane was started again and holds all that it is to hold."""
    lane = instance.lane(name)
    return lane["restarts"] > restarts and lane["planned"] and lane["warm"] == lane["planned"]


def test_lanes_that_start_while_the_store_is_away_are_whole_once_it_is_back(own_store, tmp_path):
    """All of it, or a part."""
    with serving(own_store, tmp_path / "log") as instance:
        planned = {name: instance.lane(name)["planned"] for name in LANES}
        for times, part in enumerate(["", "executables", "models"]):
            (own_store / part).rename(tmp_path / "away")
            kill_lanes(instance)
            wait_until(lambda: all(has_tried(instance, name, times) for name in LANES))  # noqa: B023  called here
            status = instance.status()
            assert [lane["warm"] for lane in status["lanes"]] == [0, 0]
            assert not status["ready"]
            assert "not published" not in str(status)
            assert instance.infer_reply("tiny:predict", {}).status == 400
            (tmp_path / "away").rename(own_store / part)
            wait_until(lambda: all(back(instance, name, times) for name in LANES))  # noqa: B023  called here
            assert {name: instance.lane(name)["planned"] for name in LANES} == planned
            assert np.array_equal(instance.infer("predict", x=X).outputs["y"], METHODS["predict"].reference(x=X)["y"])
            assert instance.lane("primary")["restarts"] == times + 1


class OddInstance(InstanceProcess):
    command = (sys.executable, "-m", "tests.warmpool.odd_instance")


def test_requests_are_answered_while_a_lane_waits_for_a_store_that_does_not_answer_or_fails_oddly(own_store, tmp_path):
    """Where no plan can be made for it, it is started again until one can."""
    stalled, broken, asked = (
        own_store.with_name(f"{own_store.name}.{what}") for what in ("stalled", "broken", "asked")
    )
    with OddInstance(own_store, tmp_path / "log", ODD_STORE="stalling") as instance:
        instance.wait_warm()
        stalled.touch()
        os.kill(instance.lane("primary")["pid"], signal.SIGKILL)
        wait_until(asked.exists)
        outputs, parameters = instance.infer("predict", x=X)
        assert np.array_equal(outputs["y"], METHODS["predict"].reference(x=X)["y"])
        assert parameters["lane"] == "cpu"
        assert instance.lane("primary")["state"] == "starting"
        stalled.unlink()
        instance.wait_warm()
        assert instance.lane("primary")["restarts"] == 1
        broken.touch()
        os.kill(instance.lane("primary")["pid"], signal.SIGKILL)
        wait_until(lambda: instance.lane("primary")["restarts"] > 2)
        assert "a mistake of ours" in instance.log
        assert instance.infer("predict", x=X).parameters["lane"] == "cpu"
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


def test_a_model_that_cannot_be_read_at_the_start_is_served_as_soon_as_it_can(own_store, tmp_path):
    """Three of them, each for another part of it."""
    hidden = {"weights": "", "manifest": "1/manifest.json", "serving": "serving.json"}
    (tmp_path / "good").mkdir()
    for number, (model, part) in enumerate(hidden.items(), 1):
        before = set((own_store / "weights").iterdir())
        publish_tiny(LocalStore(own_store), model, ("predict",), {"bias": BIAS + np.float32(number), "matrix": MATRIX})
        (weights,) = set((own_store / "weights").iterdir()) - before
        damaged = own_store / "models" / model / part if part else weights
        hidden[model] = str(damaged)
        damaged.rename(tmp_path / "good" / model)
        if part:
            damaged.write_text("{")
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: set(instance.status()["problems"]) == set(hidden))
        for model, damaged in hidden.items():
            (tmp_path / "good" / model).replace(damaged)
        wait_until(lambda: all(instance.status()["models"].get(model, {}).get("ready") for model in hidden))
        assert instance.status()["problems"] == {}
        for number, model in enumerate(hidden, 1):
            reply = instance.infer_reply(f"{model}:predict", tensors("predict", {"x": X}))
            assert reply.status == 200, reply.body
            expected = METHODS["predict"].reference(x=X)["y"] + np.float32(number)
            assert np.array_equal(inferred(reply).outputs["y"], expected)
        assert instance.lane("primary")["restarts"] == 0
