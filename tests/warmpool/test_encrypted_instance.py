"""A store that is signed and encrypted is published into and served from, and its disk shows nothing of the model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cache.data_keys import FileKey
from cache.encryption import is_envelope
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signing import Signer
from tests.edges import assert_same, inputs_for, sizes_of
from tests.instance_process import InstanceProcess, alive, serving, wait_until
from tests.tiny import BIAS, MATRIX, publish_tiny, take_executables
from tests.warmpool.command import assert_one_line, warmpool
from warmpool.publishing.progress import Lines
from warmpool.publishing.publish import Options, publish

METHODS = ("predict", "tokens")
MODEL = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=1, sizes=(1,), batch=True)

def predict(params, x):
    return x @ params["w"]

model = Model(
    name="dense",
    methods={{"predict": predict}},
    inputs={{"x": Tensor("float32", (batch, 2))}},
    params={{"w": jnp.full((2, 2), {weight})}},
)
"""


@pytest.fixture(scope="module")
def settings(tiny_store, fingerprint, tmp_path_factory):
    """A store with the tiny model."""
    folder = tmp_path_factory.mktemp("encrypted")
    Signer.generate().write(folder / "signing")
    FileKey.write(folder / "encryption")
    made = StoreSettings(
        store=str(folder / "store"), signing_key=str(folder / "signing"), encryption_key=str(folder / "encryption")
    )
    take_executables(open_store(made), LocalStore(tiny_store), fingerprint, METHODS)
    publish_tiny(open_store(made), methods=METHODS)
    return made


def flags(settings):
    return "--trusted-keys", f"{settings.signing_key}.pub", "--encryption-key", settings.encryption_key


def test_an_instance_serves_it_and_a_lane_that_was_killed_comes_back(settings, tmp_path):
    with serving(Path(settings.store), tmp_path / "log", *flags(settings)) as instance:
        lanes = instance.status()["lanes"]
        assert [lane["cold"] for lane in lanes] == [{}, {}]
        assert all(lane["warm"] == lane["planned"] > 0 for lane in lanes)
        for name in METHODS:
            for sizes in sizes_of(name):
                inputs = inputs_for(name, sizes)
                assert_same(name, instance.infer(name, **inputs).outputs, inputs)
        before = instance.lane("primary")["pid"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: instance.lane("primary")["pid"] not in {before, None})
        wait_until(lambda: instance.lane("primary")["state"] == "warm")
        inputs = {"x": np.ones((1, 4))}
        outputs, parameters = instance.infer("predict", **inputs)
        assert_same("predict", outputs, inputs)
        assert (parameters["lane"], instance.lane("primary")["cold"]) == ("primary", {})


def test_nothing_of_the_model_is_on_the_disk(settings):
    files = [file for file in Path(settings.store).rglob("*") if file.is_file() and file.name != ".lock"]
    encrypted = set()
    for file in files:
        content = file.read_bytes()
        for secret in (MATRIX.tobytes(), BIAS.tobytes(), b"WPXLA", b"HloModule"):
            assert secret not in content, file
        if is_envelope(content):
            encrypted.add(file)
    secret_folders = ("executables", "programs", "weights")
    assert encrypted == {file for folder in secret_folders for file in (Path(settings.store) / folder).iterdir()}
    assert len(encrypted) > len(METHODS)


def test_without_the_key_an_instance_says_which_setting_it_lacks(settings, tmp_path):
    trust = "--trusted-keys", f"{settings.signing_key}.pub"
    with InstanceProcess(Path(settings.store), tmp_path / "log", *trust) as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200 and instance.status()["problems"])
        problem = instance.status()["problems"]["tiny"]
    assert problem.startswith("'weights/")
    assert problem.endswith("is encrypted: give the key as encryption_key")


def test_a_key_file_that_is_missing_stops_the_start_in_one_line(settings):
    trust = "--trusted-keys", f"{settings.signing_key}.pub"
    result = warmpool("serve", "--store", settings.store, *trust, "--encryption-key", "/none")
    assert_one_line(result, "serve", "encryption_key /none: it cannot be read")


def files_in_memory(pid: int) -> list[Path]:
    """Those that a process holds open; it opens and closes others meanwhile."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(file.readlink()).startswith("/memfd:warmpool"):
                found.append(file)
    return found


def test_a_lane_ends_with_its_front_and_its_memory_with_it(settings, tmp_path):
    instance = InstanceProcess(Path(settings.store), tmp_path / "log", *flags(settings))
    try:
        instance.wait_warm()
        files = files_in_memory(instance.process.pid)
        assert len(files) > len(METHODS)  # an executable and the weights at least
        pids = [lane["pid"] for lane in instance.status()["lanes"]]
        instance.process.kill()
        instance.process.wait(30)
        wait_until(lambda: not any(map(alive, pids)))
        assert not any(file.exists() for file in files)
    finally:
        instance.process.kill()
        instance.process.wait()


def test_a_publish_takes_what_is_stored_and_mends_what_is_damaged(tmp_path, monkeypatch):
    """Children prove executables out of files in the memory of the process that publishes."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    Signer.generate().write(tmp_path / "signing")
    FileKey.write(tmp_path / "encryption")
    settings = StoreSettings(
        store=str(tmp_path / "store"),
        signing_key=str(tmp_path / "signing"),
        encryption_key=str(tmp_path / "encryption"),
    )
    options = Options(model_file=tmp_path / "model.py", store=settings, platform="cpu")

    def published(weight, version):
        options.model_file.write_text(MODEL.format(weight=weight))
        summary = publish(replace(options, version=version), Lines(sys.stderr))
        return summary.compiled, summary.reused

    assert published(0.5, "1") == (2, 0)
    assert published(0.25, "2") == (0, 2)  # other weights, proved with the executable that is stored
    for folder in ("weights", "executables"):
        for file in (tmp_path / "store" / folder).iterdir():
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert published(0.5, "1") == (2, 0)
    store = open_store(settings)
    manifests = [store.get(f"models/dense/{version}/manifest.json") for version in "12"]
    assert manifests[0] != manifests[1]
    assert published(0.25, "2") == (0, 2)
    for name in store.names("weights"):
        assert store.get(f"weights/{name}")


def test_a_key_is_made_by_a_command_that_never_prints_it(tmp_path):
    result = warmpool("cache", "keygen", "--encryption", str(tmp_path / "key"))
    key = FileKey.read(tmp_path / "key")
    assert result.returncode == 0
    assert key.name in result.stdout
    assert (tmp_path / "key").read_text().strip() not in result.stdout
    assert sorted(file.name for file in tmp_path.iterdir()) == ["key"]  # no public half
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    result = warmpool("cache", "keygen", "--encryption", "--json", str(tmp_path / "other"))
    assert json.loads(result.stdout) == {
        "encryption": str(tmp_path / "other"),
        "key": FileKey.read(tmp_path / "other").name,
    }
    result = warmpool("cache", "keygen", "--encryption", str(tmp_path / "key"))
    assert_one_line(result, "cache", "keygen: encryption key", "cannot be written")
    assert FileKey.read(tmp_path / "key").name == key.name
