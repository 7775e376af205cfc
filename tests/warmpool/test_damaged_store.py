"""A store whose objects are damaged: nothing of it is ever loaded, it is reported, and everything else is served."""

import contextlib
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.edges import assert_same
from tests.instance_process import InstanceProcess, inferred, tensors, wait_until
from tests.tiny import METHODS, executable_file

SECOND = "/v2/models/second/infer"
X = tensors("predict", {"x": np.ones((1, 4))})


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES = {
    "a bit flipped": flip,
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "grown": lambda data: data + b"\0",
    "zeroed": lambda data: bytes(len(data)),
    "missing": None,
}


def damage(file, how):
    """Replace a file as a store's writer would: never in place, since a process may have it mapped."""
    how = DAMAGES[how]
    content = how(file.read_bytes()) if how else None
    file.unlink()
    if content is not None:
        file.write_bytes(content)


@contextlib.contextmanager
def started(store, log_file, *flags):
    """An instance that has tried everything, ready or not."""
    with InstanceProcess(store, log_file, *flags) as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200)
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        yield instance


def assert_refused(reply):
    assert reply.status == 503, reply.body
    assert int(reply.headers["retry-after"]) >= 1
    assert list(reply.json()) == ["error"]
    assert "/" not in reply.json()["error"].replace("/v1/status", "")


def assert_second_is_served(instance):
    assert instance.answers("/v2/models/second/ready") == 200
    reply = instance.infer_reply("second", X)
    assert reply.status == 200
    assert inferred(reply).outputs["y"].tolist() == [[16.0, 9.0, -1.0]]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_executable_is_never_loaded_and_a_larger_bucket_serves_its_shapes(
    own_store, tmp_path, fingerprint, how
):
    damage(own_store / executable_file("tokens", {"batch": 2, "seq": 8}, fingerprint), how)
    with started(own_store, tmp_path / "log") as instance:
        status = instance.status()
        assert status["ready"] is True
        primary = status["lanes"][0]
        assert list(primary["cold"]) == ["tiny:tokens batch=2,seq=8"]
        assert primary["warm"] == primary["planned"] - 1
        inputs = {"ids": [[1] * 7] * 2, "mask": [[1] * 7] * 2}
        outputs, parameters = instance.infer("tokens", **inputs)
        assert_same("tokens", outputs, inputs)
        assert parameters["bucket"] == "batch=2,seq=16"  # as dear as 4 and 8, and with fewer rows
        assert_second_is_served(instance)


@pytest.mark.parametrize("how", ["a bit flipped", "missing"])
def test_a_damaged_executable_that_nothing_else_covers_is_a_503_and_the_rest_serves(
    own_store, tmp_path, fingerprint, how
):
    damage(own_store / executable_file("scale", {"length": 10}, fingerprint), how)
    with started(own_store, tmp_path / "log") as instance:
        status = instance.status()
        assert status["ready"] is False
        assert list(status["reasons"]) == ["tiny"]
        assert [list(lane["cold"]) for lane in status["lanes"]] == [["tiny:scale length=10"]] * 2
        assert instance.answers("/v2/models/tiny/ready") == 503
        assert_refused(instance.infer_reply("tiny:scale", tensors("scale", {"values": [1] * 5, "factor": 2})))
        assert instance.infer("scale", values=[1] * 4, factor=2).outputs["scaled"].tolist() == [2.0] * 4
        assert instance.infer("predict", x=np.ones((1, 4))).outputs["sum"].tolist() == [4.0]
        assert_second_is_served(instance)
        assert len(instance.get("/v1/traces?cold=1").json()) >= 1


def test_an_executable_of_another_key_is_not_taken(own_store, tmp_path, fingerprint):
    """A whole artifact in the place of another one, which would run and answer for other rows."""
    right = own_store / executable_file("predict", {"batch": 4}, fingerprint)
    right.unlink()
    right.write_bytes((own_store / executable_file("invert", {"batch": 4}, fingerprint)).read_bytes())
    with started(own_store, tmp_path / "log") as instance:
        assert list(instance.lane("primary")["cold"]) == ["second:predict batch=4", "tiny:predict batch=4"]
        outputs, parameters = instance.infer("predict", x=np.ones((3, 4)))
        assert outputs["sum"].tolist() == [4.0] * 3
        assert parameters["bucket"] == "batch=8"


def test_requests_that_wait_for_an_executable_that_turns_out_damaged_are_answered(own_store, tmp_path, fingerprint):
    """And those behind them do not wait for anything else to happen."""
    damage(own_store / executable_file("scale", {"length": 10}, fingerprint), "a bit flipped")
    with InstanceProcess(own_store, tmp_path / "log") as instance, ThreadPoolExecutor(8) as pool:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        sizes = [10, 4, 7, 3]
        replies = list(
            pool.map(
                lambda size: instance.infer_reply("tiny:scale", tensors("scale", {"values": [1] * size, "factor": 3})),
                sizes,
            )
        )
        assert [reply.status for reply in replies] == [503, 200, 503, 200]


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_weights_are_never_served(own_store, tmp_path, how):
    (weights,) = (own_store / "weights").iterdir()
    damage(weights, how)
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        for _ in range(20):
            assert_refused(instance.infer_reply("tiny:predict", X))
        status = wait_until(lambda: problems_of(instance))
        assert_refused(instance.infer_reply("tiny:predict", X))
        assert set(status["reasons"]) == {"second", "tiny"}
        assert all("weights" in reason for reason in status["reasons"].values())
        assert status["ready"] is False
        assert instance.answers("/v2/health/live") == 200


def problems_of(instance):
    status = instance.status()
    return status if len(status["reasons"]) == 2 and "" not in status["reasons"] else None


@pytest.mark.parametrize("how", ["a bit flipped", "truncated", "missing"])
def test_weights_that_are_damaged_later_are_not_taken_by_the_next_lane(own_store, tmp_path, how):
    with started(own_store, tmp_path / "log") as instance:
        (weights,) = (own_store / "weights").iterdir()
        damage(weights, how)
        pid = instance.lane("primary")["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: instance.lane("primary")["pid"] not in {None, pid})
        wait_until(lambda: instance.lane("primary")["state"] == "warm")
        for _ in range(20):  # the CPU lane still has the whole weights: it answers, rightly
            reply = instance.infer_reply("tiny:predict", X)
            assert reply.status == 200
            assert inferred(reply).outputs["y"].tolist() == [[16.0, 9.0, -1.0]]
            assert inferred(reply).parameters["lane"] == "cpu"
        assert instance.lane("primary")["restarts"] == 1
        status = instance.status()
        assert status["ready"] is False
        assert status["lanes"][0]["warm"] == 0
        assert "weights" in json.dumps(status["reasons"]) + json.dumps(status["lanes"][0]["cold"])


MANIFEST_DAMAGES = {
    **DAMAGES,
    "another format": lambda data: data.replace(b'"format": 1', b'"format": 2'),
    "an unknown field": lambda data: data.replace(b'"format": 1', b'"format": 1, "surprise": 1'),
    "an unknown dimension": lambda data: data.replace(b'"2*seq + 1"', b'"2*sequence + 1"'),
    "an unknown dtype": lambda data: data.replace(b'"int32"', b'"int33"'),
    "no default method": lambda data: data.replace(b'"default_method": "predict"', b'"default_method": "other"'),
}
del MANIFEST_DAMAGES["a bit flipped"], MANIFEST_DAMAGES["grown"]


@pytest.mark.parametrize("how", MANIFEST_DAMAGES)
def test_a_damaged_manifest_is_a_problem_of_its_model_alone(own_store, tmp_path, how):
    file = own_store / "models" / "tiny" / "1" / "manifest.json"
    damaged = MANIFEST_DAMAGES[how]
    content = damaged(file.read_bytes()) if damaged else None
    assert content != file.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with started(own_store, tmp_path / "log") as instance:
        assert_second_is_served(instance)
        assert_refused(instance.infer_reply("tiny:predict", X))
        assert list(instance.status()["problems"]) == ["tiny"]
        wait_until(lambda: instance.get("/v2/health/ready").status == 200)


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", b'"float33"'), ("dtype", b'"object"'), ("offset", b"-64"), ("offset", b"1000000")]
)
def test_weights_that_lie_nowhere_or_are_of_no_dtype_cost_their_model_and_no_lane(own_store, tmp_path, field, value):
    """Where nothing has to be signed, anything may be in a manifest."""
    file = own_store / "models" / "tiny" / "1" / "manifest.json"
    content = file.read_bytes()
    start = content.index(b'"name": "matrix"')
    damaged = re.sub(rb'("%b": )("\w+"|\d+)' % field.encode(), rb"\g<1>" + value, content[start:], count=1)
    assert damaged != content[start:]
    file.unlink()
    file.write_bytes(content[:start] + damaged)
    with started(own_store, tmp_path / "log") as instance:
        status = instance.status()
        assert (list(status["problems"]), status["reasons"]) == (["tiny"], {})
        assert "its weight 'matrix'" in status["problems"]["tiny"]
        assert [lane["restarts"] for lane in status["lanes"]] == [0, 0]
        assert_second_is_served(instance)
        assert_refused(instance.infer_reply("tiny:predict", X))


@pytest.mark.parametrize("how", ["truncated", "emptied", "missing", "zeroed"])
def test_a_damaged_target_is_a_problem_of_its_model_alone(own_store, tmp_path, how):
    (file,) = (own_store / "models" / "tiny" / "1" / "targets").iterdir()
    damage(file, how)
    with started(own_store, tmp_path / "log") as instance:
        assert_second_is_served(instance)
        assert_refused(instance.infer_reply("tiny:predict", X))
        status = instance.status()
        assert list(status["reasons"]) == ["tiny"]
        assert [list(lane["missing"]) for lane in status["lanes"]] == [["tiny/1"]] * 2


def test_an_empty_store_is_live_and_says_why_it_is_not_ready(tmp_path):
    (tmp_path / "store").mkdir()
    with InstanceProcess(tmp_path / "store", tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: "no model" in instance.get("/v2/health/ready").json()["reasons"].get("", ""))
        assert instance.infer_reply("tiny", X).status == 404
        assert instance.answers("/v1/status") == 200


def test_every_method_of_the_tiny_model_has_a_bucket_that_covers_all_lengths():
    """What the tests above take for granted of the store that they damage."""
    for method in METHODS.values():
        assert {dim.name: dim.sizes[-1] for dim in method.dims} in method.buckets
