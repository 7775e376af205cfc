"""The store changes under a running instance, or is hardly to be reached: what is warm is served on, and rightly."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from benchmarks.gameday.fault_proxy import FaultProxy, Weather, answers, broken_after, late, lost, passed
from benchmarks.gameday.readiness import Readiness
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signing import Signer
from tests.cache.gcs_server import GcsServer
from tests.chaos.load import Load, within
from tests.chaos.test_processes import RESTART_S_MAX, pid_of, renewed, send
from tests.instance_process import InstanceProcess, serving, wait_until
from tests.tiny import publish_tiny, take_executables
from tests.warmpool.test_damaged_store import DAMAGES, damage

LOOK_S_MAX = 70.0  # an instance looks at what it misses at least once a minute


def kill(instance, name):
    """Kill a lane, and wait until its end was noticed."""
    pid = pid_of(instance, name)
    send(pid, signal.SIGKILL)
    wait_until(partial(renewed, instance, name, pid))


def has_tried_all(instance, name):
    return instance.lane(name)["state"] == "warm"


def is_whole(instance):
    return all(lane["warm"] == lane["planned"] > 0 for lane in instance.status()["lanes"])


@pytest.mark.slow
def test_executables_are_damaged_in_all_ways_while_it_serves_and_are_loaded_once_they_are_back(
    own_store, tmp_path, minimum
):
    """The primary lane comes up without them; the other has them still, until it may load them again itself."""
    files = sorted((own_store / "executables").rglob("*"))
    sound = {file: file.read_bytes() for file in files if file.is_file()}
    assert len(sound) > 3 * len(DAMAGES)
    with (
        serving(own_store, tmp_path / "log") as instance,
        Readiness(instance, minimum) as readiness,
        Load(instance) as load,
    ):
        load.wait_for(50)
        for number, file in enumerate(sound):
            if number % 4:  # whether it is of a minimum set or not
                damage(file, [*DAMAGES][number % len(DAMAGES)])
        kill(instance, "primary")
        within(RESTART_S_MAX, partial(has_tried_all, instance, "primary"))
        status = instance.status()
        assert status["lanes"][0]["cold"]
        assert not status["ready"]
        load.wait_for(100, "cpu")
        for file, content in sound.items():
            file.unlink(missing_ok=True)
            file.write_bytes(content)
        within(RESTART_S_MAX + LOOK_S_MAX, partial(is_whole, instance))
        kill(instance, "cpu")
        within(RESTART_S_MAX, partial(is_whole, instance))
        load.wait_for(50, "primary")
    load.check()
    assert readiness.contradictions == []
    assert readiness.looks[False]


STORM = [answers(503), answers(503), answers(500), late, lost, broken_after(100, reset=True), passed]


@pytest.fixture
def settings(tiny_store, fingerprint, tmp_path, monkeypatch):
    """A bucket with the tiny model, and what is between it and an instance."""
    (tmp_path / "server").mkdir()
    Signer.generate().write(tmp_path / "signing")
    settings = StoreSettings(store="gs://bucket/pre", signing_key=str(tmp_path / "signing"))
    with GcsServer(tmp_path / "server") as server, FaultProxy(server) as proxy:
        server.client().create_bucket("bucket")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        take_executables(open_store(settings), LocalStore(tiny_store), fingerprint)
        publish_tiny(open_store(settings))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        proxy.script = Weather()
        yield settings, proxy.script


@pytest.mark.slow
def test_a_store_that_answers_late_with_errors_or_with_half_of_it_costs_nobody_an_answer(settings, tmp_path, minimum):
    """Not an instance that has its copies, though its lanes die; and one that has none comes up all the same."""
    store, weather = settings
    flags = ("--trusted-keys", f"{store.signing_key}.pub", "--cache-folder")
    with serving(store.store, tmp_path / "log", *flags, str(tmp_path / "first")) as instance:
        with Readiness(instance, minimum) as readiness, Load(instance) as load:
            load.wait_for(50)
            weather.faults = STORM
            for name in ("primary", "cpu"):
                kill(instance, name)
                within(RESTART_S_MAX + LOOK_S_MAX, partial(is_whole, instance))
                load.wait_for(50)
            weather.faults = [answers(503)]
            kill(instance, "primary")
            load.wait_for(50)
            weather.faults = STORM
            within(RESTART_S_MAX + LOOK_S_MAX, partial(is_whole, instance))
        load.check()
        assert readiness.contradictions == []
    with InstanceProcess(store.store, tmp_path / "log", *flags, str(tmp_path / "second")) as instance:
        within(2 * LOOK_S_MAX, lambda: instance.answers("/v2/health/ready") == 200)
        within(2 * LOOK_S_MAX, partial(is_whole, instance))
        with Load(instance) as load:
            load.wait_for(100)
        load.check()
