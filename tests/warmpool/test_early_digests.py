"""Digests that a fork works out early: what it says, what it is believed, and what happens without it."""

import hashlib
import os
import signal
import threading

import msgspec
import numpy as np
import pytest

from cache.local_store import LocalStore
from cache.settings import StoreSettings
from tests.instance_process import InstanceProcess, serving, wait_until
from tests.tiny import METHODS
from warmpool import early_digests
from warmpool.blob import Blob
from warmpool.catalog import read_catalog
from warmpool.early_digests import EarlyDigests, Report, main
from warmpool.forked_process import ForkedProcess
from warmpool.manifest import Manifest, encode, manifest_path, serving_path, weights_path
from warmpool.messages import Stage

X = np.ones((1, 4), np.float32)
SAID = Report("1:2:3:4", "ab" * 32, Stage("digest", 1, 2))

# Python runs this at its start. It keeps who works out a digest, and has that fork, or the front, do what ODD says.
WATCH = """
import hashlib, os, pathlib, signal, sys, time
if "serve" in sys.orig_argv:
    front, odd = os.getpid(), os.environ.get("ODD", "")
    plain, opened = hashlib.file_digest, pathlib.Path.open

    def watched(*arguments):
        early = os.getpid() != front
        if early and odd == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        found = plain(*arguments)
        with open(os.environ["WATCHED"], "a") as said:
            said.write("early " if early else "late ")
        return found

    def gated(self, *arguments, **named):
        blob = sys._getframe(1).f_code.co_filename.endswith("blob.py")
        while blob and os.getpid() == front and odd == "replaced" and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.005)
        return opened(self, *arguments, **named)

    hashlib.file_digest, pathlib.Path.open = watched, gated
"""


def said_of(folder):
    """What a fork says of a store in this folder, and its status."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as lines:
        status = main([str(theirs), str(folder)])
        os.close(theirs)
        return [msgspec.json.decode(line, type=Report) for line in lines], status


def weights_of(folder):
    """(identity, digest) of the weights of each model in a store, in the order of their names."""
    found = []
    for _, model in sorted(read_catalog(LocalStore(folder)).models.items()):
        with Blob(model.weights_file) as file:
            found.append((file.identity, hashlib.sha256(model.weights_file.read_bytes()).hexdigest()))
    return found


@pytest.fixture
def two(own_store):
    """A store whose two models have weights of their own."""
    path = manifest_path("second", read_catalog(LocalStore(own_store)).models["second"].manifest.version)
    manifest = msgspec.json.decode((own_store / path).read_bytes(), type=Manifest)
    content = (own_store / weights_path(manifest.weights.digest)).read_bytes() + b"more"
    digest = hashlib.sha256(content).hexdigest()
    weights = msgspec.structs.replace(manifest.weights, digest=digest, size_bytes=len(content))
    (own_store / weights_path(digest)).write_bytes(content)
    (own_store / path).write_bytes(encode(msgspec.structs.replace(manifest, weights=weights)))
    return own_store


@pytest.fixture
def watched(tmp_path):
    """The environment of an instance that is watched, and who worked out digests in it."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    environment = {"PYTHONPATH": str(tmp_path), "WATCHED": str(tmp_path / "watched"), "GATE": str(tmp_path / "gate")}
    (tmp_path / "watched").touch()
    return environment, lambda: (tmp_path / "watched").read_text().split()


def damage(blob):
    """Put another file of the same size in the place of one."""
    content = bytearray(blob.read_bytes())
    content[0] ^= 1
    other = blob.with_name("other")
    other.write_bytes(content)
    other.replace(blob)


# What the fork says


def test_it_says_the_digest_of_every_served_versions_weights_and_of_no_other_file(two):
    (two / "weights" / ("0" * 64)).write_bytes(b"of a version that is not served")
    said, status = said_of(two)
    assert status == 0
    assert {(one.identity, one.digest) for one in said} == set(weights_of(two))


def test_weights_of_two_models_are_read_once(own_store):
    (weights,) = set(weights_of(own_store))
    said, _ = said_of(own_store)
    assert [(one.identity, one.digest) for one in said] == [weights]


@pytest.mark.parametrize("broken", ["serving", "manifest", "weights"])
def test_a_model_of_which_something_cannot_be_read_does_not_hide_the_others(two, broken):
    model = read_catalog(LocalStore(two)).models["second"]
    others = [weights_of(two)[1]]
    if broken == "weights":
        model.weights_file.unlink()
    else:
        file = two / serving_path("second") if broken == "serving" else model.manifest_file
        file.write_bytes(b'{"stable": ')
    said, status = said_of(two)
    assert status == 0
    assert [(one.identity, one.digest) for one in said] == others


def test_of_a_file_that_is_written_to_meanwhile_it_says_nothing(two, monkeypatch):
    plain = Blob.digest

    def written_to(blob):
        digest = plain(blob)
        for file in (two / "weights").iterdir():
            os.utime(file, ns=(1, 1))
        return digest

    monkeypatch.setattr(Blob, "digest", written_to)
    said, status = said_of(two)
    assert status == 0
    assert len(said) < len(weights_of(two))


def test_what_is_no_store_is_nothing_to_speak_of(tmp_path):
    assert said_of(tmp_path / "none") == ([], 0)
    assert said_of("ftp://somewhere") == ([], 1)


# What it is believed


@pytest.fixture
def spoken():
    """What hears a fork, and the end of the pipe that a fork speaks into."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb", buffering=0) as speaking:
        early = EarlyDigests(None, ours)
        yield early, speaking
        early.close()


def test_what_was_said_is_known_by_identity_and_nothing_else_is_once_the_fork_has_ended(spoken):
    early, speaking = spoken
    line = msgspec.json.encode(SAID)
    speaking.write(line[:30])
    speaking.write(line[30:] + b"\n" + line.replace(b"1:2:3:4", b"1:2:3:5")[:-1])  # it was killed while it wrote
    speaking.close()
    assert early.of("1:2:3:5") is None
    assert early.of(SAID.identity) == SAID.digest
    assert early.stages == [SAID.stage]


def test_who_asks_waits_until_it_is_said(spoken):
    early, speaking = spoken
    found = []
    asking = threading.Thread(target=lambda: found.append(early.of(SAID.identity)))
    asking.start()
    speaking.write(msgspec.json.encode(SAID) + b"\n")
    asking.join(60)
    assert found == [SAID.digest]


def test_a_fork_that_says_nothing_is_ended_and_not_waited_for_again(monkeypatch):
    monkeypatch.setattr(early_digests, "SILENCE_S_MAX", 0.01)
    silent = ForkedProcess(os.posix_spawnp("sleep", ["sleep", "600"], os.environ))
    ours, theirs = os.pipe()
    early = EarlyDigests(silent, ours)
    assert early.of(SAID.identity) is None
    assert silent.returncode == -signal.SIGKILL
    monkeypatch.setattr(early_digests, "SILENCE_S_MAX", None)  # for ever
    assert early.of(SAID.identity) is None
    os.close(theirs)
    early.close()


@pytest.mark.parametrize(
    "settings",
    [
        StoreSettings(store="gs://bucket/folder"),
        StoreSettings(store="folder", encryption_key="key"),
    ],
    ids=["far", "encrypted"],
)
def test_nothing_is_forked_where_files_are_not_what_is_read(settings, monkeypatch):
    monkeypatch.setattr(early_digests, "has_one_thread", lambda: True)
    monkeypatch.setattr(ForkedProcess, "start", lambda *_: pytest.fail("forked"))
    early = EarlyDigests.begin(settings)
    assert early.of("1:2:3:4") is None
    early.close()


def test_nothing_is_forked_beside_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(early_digests, "has_one_thread", lambda: False)
    monkeypatch.setattr(ForkedProcess, "start", lambda *_: pytest.fail("forked"))
    EarlyDigests.begin(StoreSettings(store=str(tmp_path))).close()


# In an instance


def test_an_instance_has_all_digests_from_the_fork_and_works_out_none(two, tmp_path, watched):
    environment, who = watched
    with serving(two, tmp_path / "log", **environment) as instance:
        assert who() == ["early"] * len(weights_of(two))
        stages = [span["name"] for trace in instance.get("/v1/traces").json() for span in trace["spans"]]
        assert stages.count("early digests") == 1


def test_where_the_fork_is_killed_the_instance_works_them_out_itself(two, tmp_path, watched):
    environment, who = watched
    with serving(two, tmp_path / "log", ODD="killed", **environment) as instance:
        assert who() == ["late"] * len(weights_of(two))
        assert np.array_equal(instance.infer("predict", x=X).outputs["y"], METHODS["predict"].reference(x=X)["y"])


def test_a_file_that_takes_the_place_of_one_that_the_fork_has_read_is_read_again_and_refused(two, tmp_path, watched):
    environment, who = watched
    catalog = read_catalog(LocalStore(two)).models
    with InstanceProcess(two, tmp_path / "log", ODD="replaced", **environment) as instance:
        wait_until(lambda: who() == ["early"] * len(catalog))
        damage(catalog["tiny"].weights_file)
        (tmp_path / "gate").touch()
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: "tiny" in instance.status()["problems"])
        assert "digest" in instance.status()["problems"]["tiny"]
        assert instance.infer_reply("tiny:predict", {}).status == 503
        wait_until(lambda: instance.status()["models"]["second"]["ready"])
    assert who().count("late") >= 1


def test_weights_that_were_damaged_before_are_refused(two, tmp_path, watched):
    environment, who = watched
    damage(read_catalog(LocalStore(two)).models["tiny"].weights_file)
    with InstanceProcess(two, tmp_path / "log", **environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        wait_until(lambda: "tiny" in instance.status()["problems"])
        assert "digest" in instance.status()["problems"]["tiny"]
        wait_until(lambda: instance.status()["models"]["second"]["ready"])
    assert who()[:2] == ["early", "early"]
