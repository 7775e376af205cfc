"""A model is published into a bucket and served from there, also while the bucket cannot be reached."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from dataclasses import replace

import pytest

from benchmarks.gameday.fault_proxy import FaultProxy, answers, passed
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signing import Signer
from tests.cache.gcs_server import GcsServer
from tests.edges import assert_same, inputs_for, sizes_of
from tests.instance_process import InstanceProcess, serving, wait_until
from tests.tiny import publish_tiny
from tests.warmpool.command import assert_one_line, in_process, warmpool
from warmpool.survey import survey

METHODS = ("predict", "tokens")
MODEL = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=2, sizes=(1, 2), batch=True)

def predict(params, x):
    return x * params["w"]

model = Model(
    name="scaled",
    methods={"predict": predict},
    inputs={"x": Tensor("float32", (batch,))},
    params={"w": jnp.float32(3)},
)
"""

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def reached(folder, monkeypatch):
    """A server of the buckets in a folder, for this process and those that it starts."""
    with GcsServer(folder / "server") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield server


def settings_in(folder):
    return StoreSettings(store="gs://bucket/pre", signing_key=str(folder / "signing"))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder of a server whose bucket has the methods, and of the keys of who published them; no test uses it."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "server").mkdir()
    Signer.generate().write(folder / "signing")
    with pytest.MonkeyPatch.context() as monkeypatch, reached(folder, monkeypatch) as server:
        server.client().create_bucket("bucket")
        publish_tiny(open_store(settings_in(folder)), methods=METHODS)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return folder


@pytest.fixture
def server(published, tmp_path, monkeypatch):
    """A server of its own with a copy of that."""
    shutil.copytree(published, tmp_path, dirs_exist_ok=True)
    with reached(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def settings(server, tmp_path):
    """The bucket, and the keys of who published into it."""
    return settings_in(tmp_path)


def flags(settings):
    return "--trusted-keys", f"{settings.signing_key}.pub"


def assert_right(instance):
    for name in METHODS:
        for sizes in sizes_of(name):
            inputs = inputs_for(name, sizes)
            assert_same(name, instance.infer(name, **inputs).outputs, inputs)


def assert_all_warm(instance):
    for lane in instance.status()["lanes"]:
        assert lane["cold"] == lane["missing"] == {}
        assert lane["warm"] == lane["planned"] > 0


def test_it_is_served_while_the_bucket_comes_and_goes(server, settings, tmp_path):
    with serving(settings.store, tmp_path / "first", *flags(settings)) as first:
        assert_all_warm(first)
        assert_right(first)
        server.stop()
        assert_right(first)
        before = first.lane("primary")["pid"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: first.lane("primary")["pid"] not in {before, None})
        wait_until(lambda: first.lane("primary")["state"] == "warm")
        assert_all_warm(first)
        assert_right(first)
        with serving(settings.store, tmp_path / "second", *flags(settings)) as second:
            assert second.log.count("store is away") == 1
            assert_all_warm(second)
            assert_right(second)
            server.start()
            assert_right(second)
        other = ("--cache-folder", str(tmp_path / "other"))
        with serving(settings.store, tmp_path / "third", *flags(settings), *other) as third:
            assert "store is away" not in third.log
            assert_all_warm(third)
            assert_right(third)
        assert_right(first)


def test_nothing_of_it_is_known_where_it_was_never_read(server, settings, tmp_path):
    server.stop()
    other = ("--cache-folder", str(tmp_path / "other"), "--port", "0", "--grpc-port", "0")
    result = warmpool("serve", "--store", settings.store, *flags(settings), *other)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith("GCS cannot be reached: Connection refused")


def test_artifacts_come_side_by_side_and_meanwhile_it_answers_and_a_lane_may_die(server, settings, tmp_path):
    with FaultProxy(server) as proxy:
        waiting: set[str] = set()
        held = threading.Event()

        def hold(call):
            if "/download/" in call.path and "executables" in call.path:
                waiting.add(call.path)
                assert held.wait(60)
            passed(call)

        proxy.script.extend([hold] * 1000)
        environment = {"STORAGE_EMULATOR_HOST": proxy.url}
        with InstanceProcess(settings.store, tmp_path / "log", *flags(settings), **environment) as instance:
            try:
                wait_until(lambda: len(waiting) == 16)
                assert instance.answers("/v2/health/live") == 200
                assert instance.answers("/v2/health/ready") == 503
                before = instance.lane("primary")["pid"]
                os.kill(before, signal.SIGKILL)
                wait_until(lambda: instance.lane("primary")["pid"] not in {before, None})
            finally:
                held.set()
            instance.wait_warm()
            assert_all_warm(instance)
            assert_right(instance)
        fetched = [seen.path for seen in proxy.seen if "/download/" in seen.path and "executables" in seen.path]
        assert len(fetched) == len(set(fetched)), "one was downloaded twice"


def test_a_damaged_copy_is_fetched_again(server, settings, tmp_path):
    with serving(settings.store, tmp_path / "first", *flags(settings)) as instance:
        assert_all_warm(instance)
    for folder in ("executables", "weights"):
        for copy in (tmp_path / "cache").rglob(f"{folder}/*"):
            copy.write_bytes(bytes([copy.read_bytes()[0] ^ 1]) + copy.read_bytes()[1:])
    with serving(settings.store, tmp_path / "second", *flags(settings)) as instance:
        # What is loaded again is neither warm nor cold for a moment.
        wait_until(lambda: all(lane["warm"] == lane["planned"] > 0 for lane in instance.status()["lanes"]))
        assert_all_warm(instance)
        assert_right(instance)


def test_it_is_published_on_the_command_line_and_what_the_bucket_lost_is_made_again(server, settings, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    publish = ("publish", str(tmp_path / "model.py"), "--store", settings.store, "--signing-key", settings.signing_key)
    first = warmpool(*publish)
    assert "4 executables compiled" in first.stdout + first.stderr, first
    again = in_process(*publish)
    assert "nothing compiled" in again.stdout + again.stderr, again
    with serving(settings.store, tmp_path / "log", *flags(settings)) as instance:
        reply = instance.post("/v1/models/scaled:predict", {"instances": [1, 2]})
        assert reply.json()["predictions"] == [3.0, 6.0]
    store = open_store(replace(settings))
    (target,) = next(one for one in survey(store).versions if one.manifest.model == "scaled").targets.values()
    lost = target.executables[0].key
    store.delete(f"executables/{lost}")
    mended = in_process(*publish)
    assert "1 executables compiled" in mended.stdout + mended.stderr, mended
    assert lost in store.names("executables")


def test_a_bucket_that_may_not_be_read_is_told_in_one_line(server, settings):
    with FaultProxy(server) as proxy:
        proxy.script.extend([answers(403, "somebody@example.test does not have storage.objects.list access")] * 1000)
        model = ("no-such-model.py", "--store", settings.store, "--signing-key", settings.signing_key)
        listed = ("cache", "ls", *model[1:])
        result = in_process(*listed, STORAGE_EMULATOR_HOST=proxy.url)
        assert_one_line(result, "cache", "GCS answered 403", "does not have storage.objects.list access")
