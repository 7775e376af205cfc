"""A store whose objects are damaged: nothing of it is ever loaded, it is reported, and everything else is served."""

import contextlib
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cache.local_store import LocalStore
from tests.edges import assert_same, inputs_for
from tests.instance_process import InstanceProcess, inferred, tensors, wait_until
from tests.tiny import BIAS, MATRIX, METHODS, executable_file, publish_tiny
from warmpool.manifest import bucket_name

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
OF_ANOTHER = "of another key"


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


# By executable, each with a larger one beside it of which nothing is damaged: how it is, and who takes its requests.
DAMAGED: dict[tuple[Any, ...], tuple[str, set[str]]] = {
    ("tokens", 2, 8): ("a bit flipped", {"batch=2,seq=16"}),  # as dear as 4 and 8, and with fewer rows
    ("tokens", 4, 16): ("truncated", {"batch=8,seq=16"}),
    ("kinds", 2): ("emptied", {"batch=4", "batch=8"}),
    ("invert", 2): ("grown", {"batch=4", "batch=8"}),
    ("count", 2): ("zeroed", {"batch=4", "batch=8"}),
    ("scale", 4): ("missing", {"length=10"}),
    ("predict", 4): (OF_ANOTHER, {"batch=8"}),
}


def bucket_of(place):
    name, *sizes = place
    return dict(zip([dim.name for dim in METHODS[name].dims], sizes, strict=True))


def test_a_damaged_executable_or_one_of_another_key_is_never_loaded_and_a_larger_bucket_serves_its_shapes(
    own_store, tmp_path, fingerprint
):
    """That one is a whole artifact in the place of another one, which would run and answer for other rows."""
    assert {how for how, _ in DAMAGED.values()} == {*DAMAGES, OF_ANOTHER}
    for place, (how, _) in DAMAGED.items():
        file = own_store / executable_file(place[0], bucket_of(place), fingerprint)
        if how == OF_ANOTHER:
            file.unlink()
            file.write_bytes((own_store / executable_file("invert", {"batch": 4}, fingerprint)).read_bytes())
        else:
            damage(file, how)
    with started(own_store, tmp_path / "log") as instance:
        status = instance.status()
        assert status["ready"] is True
        primary = status["lanes"][0]
        titles = {f"tiny:{place[0]} {bucket_name(bucket_of(place))}" for place in DAMAGED}
        assert set(primary["cold"]) == titles | {"second:predict batch=4"}
        assert primary["warm"] == primary["planned"] - len(primary["cold"])
        for place, (_, larger) in DAMAGED.items():
            inputs = inputs_for(place[0], bucket_of(place))
            outputs, parameters = instance.infer(place[0], **inputs)
            assert_same(place[0], outputs, inputs)
            assert parameters["bucket"] in larger, place
        assert_second_is_served(instance)


def test_a_damaged_executable_that_nothing_else_covers_is_a_503_and_the_rest_serves(own_store, tmp_path, fingerprint):
    """Requests that wait for it are answered, too, and those behind them do not wait for anything else to happen."""
    damage(own_store / executable_file("scale", {"length": 10}, fingerprint), "a bit flipped")
    for batch in (1, 2, 4, 8):
        damage(own_store / executable_file("tokens", {"batch": batch, "seq": 16}, fingerprint), "missing")
    with InstanceProcess(own_store, tmp_path / "log") as instance, ThreadPoolExecutor(8) as pool:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)

        def scaled(size):
            return instance.infer_reply("tiny:scale", tensors("scale", {"values": [1] * size, "factor": 3}))

        def tokens(seq):
            return instance.infer_reply("tiny:tokens", tensors("tokens", {"ids": [[1] * seq], "mask": [[1] * seq]}))

        early = [pool.submit(scaled, size) for size in (10, 4, 7, 3)] + [pool.submit(tokens, seq) for seq in (16, 8)]
        assert [one.result().status for one in early] == [503, 200, 503, 200, 503, 200]
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        status = instance.status()
        assert status["ready"] is False
        assert list(status["reasons"]) == ["tiny"]
        missing = {batch: f"tiny:tokens batch={batch},seq=16" for batch in (1, 2, 4, 8)}
        primary, cpu = (set(lane["cold"]) for lane in status["lanes"])
        assert primary == {"tiny:scale length=10", *missing.values()}
        assert cpu == {"tiny:scale length=10", missing[1], missing[8]}
        assert instance.answers("/v2/models/tiny/ready") == 503
        assert_refused(scaled(5))
        assert_refused(tokens(9))
        assert instance.infer("scale", values=[1] * 4, factor=2).outputs["scaled"].tolist() == [2.0] * 4
        assert instance.infer("tokens", ids=[[1] * 8], mask=[[1] * 8]).outputs["total"].tolist() == [8]
        assert instance.infer("predict", x=np.ones((1, 4))).outputs["sum"].tolist() == [4.0]
        assert_second_is_served(instance)
        assert len(instance.get("/v1/traces?cold=1").json()) >= 1


# Models of which each is damaged in its own way


class Models:
    """Models beside those of a store, each with a bias of its own, which its answers tell, and so with its own weights.

    Attributes:
        names: By what is to become of them.
        weights: Their files.
    """

    def __init__(self, store, hows, methods=("predict",)):
        self.names = {how: re.sub(r"\W+", "-", how) for how in hows}
        self.weights = {}
        for number, (how, name) in enumerate(self.names.items(), 1):
            before = set((store / "weights").iterdir())
            publish_tiny(LocalStore(store), name, methods, {"bias": BIAS + np.float32(number), "matrix": MATRIX})
            (self.weights[how],) = set((store / "weights").iterdir()) - before
        self.folders = {how: store / "models" / name / "1" for how, name in self.names.items()}

    def ask(self, instance):
        """What each model answers, by what became of it."""
        return {how: instance.infer_reply(f"{name}:predict", X) for how, name in self.names.items()}

    def all_refused(self, instance):
        for reply in self.ask(instance).values():
            assert_refused(reply)


def test_damaged_weights_are_never_served(own_store, tmp_path):
    (shared,) = (own_store / "weights").iterdir()
    models = Models(own_store, DAMAGES)
    names = {"second", "tiny", *models.names.values()}
    for how, file in {**models.weights, "zeroed, of two models": shared}.items():
        damage(file, how.partition(",")[0])
    with InstanceProcess(own_store, tmp_path / "log") as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        for _ in range(5):
            models.all_refused(instance)

        def problems():
            status = instance.status()
            return status if len(status["reasons"]) == len(names) and "" not in status["reasons"] else None

        status = wait_until(problems)
        models.all_refused(instance)
        assert_refused(instance.infer_reply("tiny:predict", X))
        assert set(status["reasons"]) == names
        assert all("weights" in reason for reason in status["reasons"].values())
        assert status["ready"] is False
        assert instance.answers("/v2/health/live") == 200


def test_weights_that_are_damaged_later_are_not_taken_by_the_next_lane(own_store, tmp_path):
    models = Models(own_store, ["a bit flipped", "truncated", "missing"])
    with started(own_store, tmp_path / "log") as instance:
        before = instance.lane("primary")
        for how, file in models.weights.items():
            damage(file, how)
        os.kill(before["pid"], signal.SIGKILL)
        wait_until(lambda: instance.lane("primary")["pid"] not in {None, before["pid"]})
        wait_until(lambda: instance.lane("primary")["state"] == "warm")
        for _ in range(5):  # the CPU lane still has the whole weights: it answers, rightly
            for number, reply in enumerate(models.ask(instance).values(), 1):
                assert reply.status == 200
                assert inferred(reply).outputs["y"].tolist() == [[16.0 + number, 9.0 + number, -1.0 + number]]
                assert inferred(reply).parameters["lane"] == "cpu"
        assert instance.lane("primary")["restarts"] == 1
        status = instance.status()
        assert status["ready"] is False
        for name in models.names.values():
            primary = status["lanes"][0]
            assert not [
                title
                for title in primary["executables"]
                if title.startswith(f"{name}:") and primary["executables"][title] == "warm"
            ]
            cold = {title: why for title, why in primary["cold"].items() if title.startswith(f"{name}:")}
            assert "weights" in json.dumps([status["reasons"].get(name), cold, primary["missing"].get(f"{name}/1")])
        assert status["lanes"][0]["warm"] == before["warm"] - 4 * len(models.names)


def with_matrix(field, value):
    """A manifest whose weight `matrix` says this of itself."""

    def changed(data):
        start = data.index(b'"name": "matrix"')
        return data[:start] + re.sub(rb'("%b": )("\w+"|\d+)' % field, rb"\g<1>" + value, data[start:], count=1)

    return changed


ODD_WEIGHTS = {
    "weights of an unknown dtype": with_matrix(b"dtype", b'"float33"'),
    "weights of no dtype": with_matrix(b"dtype", b'"object"'),
    "weights before the file": with_matrix(b"offset", b"-64"),
    "weights behind the file": with_matrix(b"offset", b"1000000"),
}
MANIFEST_DAMAGES = {
    **DAMAGES,
    "another format": lambda data: data.replace(b'"format": 1', b'"format": 2'),
    "an unknown field": lambda data: data.replace(b'"format": 1', b'"format": 1, "surprise": 1'),
    "an unknown dimension": lambda data: data.replace(b'"2*seq + 1"', b'"2*sequence + 1"'),
    "an unknown dtype": lambda data: data.replace(b'"int32"', b'"int33"'),
    "no default method": lambda data: data.replace(b'"default_method": "predict"', b'"default_method": "other"'),
    **ODD_WEIGHTS,
}
del MANIFEST_DAMAGES["a bit flipped"], MANIFEST_DAMAGES["grown"]


def test_a_damaged_manifest_is_a_problem_of_its_model_alone_and_costs_no_lane(own_store, tmp_path):
    """Where nothing has to be signed, anything may be in it: weights that lie nowhere, or are of no dtype."""
    models = Models(own_store, MANIFEST_DAMAGES, tuple(METHODS))
    for how, folder in models.folders.items():
        file, damaged = folder / "manifest.json", MANIFEST_DAMAGES[how]
        content = damaged(file.read_bytes()) if damaged else None
        assert content != file.read_bytes(), how
        file.unlink()
        if content is not None:
            file.write_bytes(content)
    with started(own_store, tmp_path / "log") as instance:
        assert_second_is_served(instance)
        models.all_refused(instance)
        status = instance.status()
        assert (set(status["problems"]), status["reasons"]) == (set(models.names.values()), {})
        for how in ODD_WEIGHTS:
            assert "its weight 'matrix'" in status["problems"][models.names[how]]
        assert [lane["restarts"] for lane in status["lanes"]] == [0, 0]
        wait_until(lambda: instance.get("/v2/health/ready").status == 200)


def test_a_damaged_target_is_a_problem_of_its_model_alone(own_store, tmp_path):
    models = Models(own_store, ["truncated", "emptied", "missing", "zeroed"])
    for how, folder in models.folders.items():
        (file,) = (folder / "targets").iterdir()
        damage(file, how)
    with started(own_store, tmp_path / "log") as instance:
        assert_second_is_served(instance)
        models.all_refused(instance)
        status = instance.status()
        assert set(status["reasons"]) == set(models.names.values())
        titles = {f"{name}/1" for name in models.names.values()}
        assert [set(lane["missing"]) for lane in status["lanes"]] == [titles] * 2


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
