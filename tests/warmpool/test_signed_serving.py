"""From a key to answers: whoever makes a key publishes with it, and who is given its public half serves that alone."""

from __future__ import annotations

import contextlib
import json
import shutil
import textwrap

import numpy as np
import pytest

from cache.signing import key_id_of, read_public_keys
from tests.instance_process import InstanceProcess, inferred, wait_until
from tests.ports import free_port
from tests.warmpool.command import assert_one_line, warmpool
from warmpool import wire

MODEL = """
import jax.numpy as jnp
import numpy as np
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=4, sizes=(1, 2), batch=True)

model = Model(
    name="toy",
    methods={"predict": lambda params, x: jnp.tanh(x @ params["kernel"])},
    params={"kernel": np.array([[0.5], [0.25], [-1.0]], np.float32)},
    inputs={"x": Tensor("float32", (batch, 3))},
)
"""
X = np.array([[1, 2, 0.5], [0, 0, 1], [0.5, 0, 0]], np.float32)
ANSWERS = np.tanh([[0.5], [-1.0], [0.25]])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A folder with the key that publishes, and another one."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("publisher", "other"):
        assert warmpool("cache", "keygen", str(folder / name)).returncode == 0
    return folder


@pytest.fixture(scope="module")
def store(keys, tmp_path_factory):
    """The folder of a store with a model, published and signed."""
    folder = tmp_path_factory.mktemp("published")
    model_file = folder / "toy.py"
    model_file.write_text(textwrap.dedent(MODEL))
    flags = ("--store", str(folder / "store"), "--signing-key", str(keys / "publisher"), "--json")
    result = warmpool("publish", str(model_file), *flags)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["compiled"] == 4
    return folder / "store"


@contextlib.contextmanager
def started(store, log_file, *flags):
    """An instance that answers, ready or not."""
    with InstanceProcess(store, log_file, *flags) as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200)
        yield instance


def key_id(keys, name):
    (public,) = read_public_keys([keys / f"{name}.pub"])
    return key_id_of(public)


def reply_of(instance):
    return instance.infer_reply("toy", {"x": wire.Tensor("FP32", X.shape, X.tobytes())})


def assert_right(instance):
    reply = reply_of(instance)
    assert reply.status == 200, reply.body
    np.testing.assert_allclose(inferred(reply).outputs["output"], ANSWERS, rtol=1e-5)


def test_who_has_the_public_key_alone_serves_what_was_published(store, keys, tmp_path):
    (tmp_path / "trusted").mkdir()
    shutil.copy(keys / "publisher.pub", tmp_path / "trusted")
    with started(store, tmp_path / "log", "--trusted-keys", str(tmp_path / "trusted")) as instance:
        instance.wait_warm()
        assert_right(instance)
        lanes = instance.status()["lanes"]
        assert [(lane["cold"], lane["missing"], lane["compiles"]) for lane in lanes] == [({}, {}, 0)] * 2
        assert "UNSIGNED" not in instance.log


def assert_nothing_is_served(instance, why):
    reason = wait_until(lambda: instance.get("/v2/health/ready").json()["reasons"].get("toy"))
    assert reason == f"'models/toy/serving.json' is not trusted: it is signed by the key {why}"
    assert instance.status()["problems"] == {"toy": reason}
    assert instance.get("/v2/health/ready").status == 503
    assert instance.get("/v2/health/live").status == 200
    assert reply_of(instance).status == 503


def test_who_trusts_another_key_serves_nothing_and_says_why(store, keys, tmp_path):
    with started(store, tmp_path / "log", "--trusted-keys", str(keys / "other.pub")) as instance:
        assert_nothing_is_served(instance, f"{key_id(keys, 'publisher')[:16]}, which is not trusted here")


def test_who_distrusts_the_key_serves_nothing_and_says_why(store, keys, tmp_path):
    distrusted = key_id(keys, "publisher")
    flags = ("--trusted-keys", str(keys), "--distrusted-keys", distrusted)
    with started(store, tmp_path / "log", *flags) as instance:
        assert_nothing_is_served(instance, f"{distrusted[:16]}, which is distrusted")


def test_who_says_nothing_of_trust_is_told_what_to_say(store):
    ports = ("--port", str(free_port()), "--grpc-port", "0")
    result = warmpool("serve", "--store", str(store), *ports)
    assert_one_line(result, "serve", "trusted_keys is not set", "--trusted-keys", "--allow-unsigned")


def test_a_key_that_cannot_be_read_is_told_in_one_line(store, keys):
    ports = ("--port", str(free_port()), "--grpc-port", "0")
    for given, words in (
        (keys / "none.pub", "No such file"),
        (keys / "publisher", "it is no PEM file of a public key"),
    ):
        result = warmpool("serve", "--store", str(store), *ports, "--trusted-keys", str(given))
        assert_one_line(result, "serve", f"public key {given}: ", words)


def test_who_asks_for_unsigned_content_gets_it_with_a_loud_line_in_the_log(store, tmp_path):
    with started(store, tmp_path / "log", "--allow-unsigned") as instance:
        instance.wait_warm()
        assert_right(instance)
        (line,) = [line for line in instance.log.splitlines() if "UNSIGNED" in line]
        assert "WARNING" in line
        assert "whoever can write to it can run code in this process" in line
