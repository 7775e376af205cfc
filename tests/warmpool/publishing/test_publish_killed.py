"""kill -9 at every step of a publish: the store stays whole, nothing half done is visible, and the next one goes on.

Every step that changes the store is found by counting them once. Then, for each, a publish into a fresh store is killed
there: right before it (which is right after the one before), or, where an object is written, when it is and not in
place. That leaves all that the former would, and what is unfinished too. And one is killed behind the last of all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache.local_store import LocalStore
from cache.opening import open_store
from tests.warmpool.publishing.toy import Toy
from warmpool.cache_commands.verify import Verified, verify
from warmpool.catalog import read_catalog, read_target
from warmpool.manifest import executable_path, manifest_path, serving_path
from warmpool.survey import survey

REPLY_S_MAX = 60.0
WRITES = {"put", "put_file", "put_if"}

pytestmark = pytest.mark.slow


class Publishers:
    """Publishes by a process of their own, which kill themselves where they are told to."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.warmpool.publishing.killed_publisher"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**os.environ, "TMPDIR": str(log.parent)},  # what killed processes leave there goes with the folder
            )

    def publish(self, toy: Toy, kill: int | None = None, *, torn: bool = False) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {
            "model": str(toy.folder / "author" / "toy.py"),
            "store": str(toy.store),
            "key": toy.settings.signing_key,
            "version": None,
            "kill": kill,
            "torn": torn,
        }
        print(json.dumps(request), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(REPLY_S_MAX)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def publishers(tmp_path_factory):
    running = Publishers(tmp_path_factory.mktemp("publishers") / "log")
    yield running
    running.close()


@pytest.fixture(scope="module")
def before(publishers, tmp_path_factory):
    """A store with an earlier version that is served."""
    toy = Toy(tmp_path_factory.mktemp("before"), seq=2)
    toy.model_file(2.5)
    assert publishers.publish(toy)["summary"]["compiled"] == 2
    return toy


class Killed:
    """A store with that earlier version, into which one with another program and other weights is published.

    Args:
        before: That store.
        folder: An empty folder for the copy.
    """

    def __init__(self, before: Toy, folder: Path) -> None:
        subprocess.run(["cp", "-a", str(before.folder), str(folder)], check=True)
        self.toy = Toy(folder, seq=before.seq)
        self.toy.model_file(7.0, operation="+")
        self.store = open_store(self.toy.settings)
        self.bottom = LocalStore(self.toy.store)
        (self.first,) = [version.manifest.version for version in survey(self.store).versions]
        self.there = self.paths()

    def paths(self) -> set[str]:
        return {entry.path for entry in self.bottom.entries("")}

    def shorten_leases(self) -> None:
        """Of who was killed: the next one waits for as long as they say. A short ttl from the first might be missed."""
        for path in (f"leases/{key}" for key in self.bottom.names("leases")):
            self.bottom.put(path, json.dumps(json.loads(self.bottom.get(path)) | {"ttl_s": 0.1}).encode())

    def verified(self) -> Verified:
        return verify(self.store, survey(self.store))

    def served(self) -> str:
        """The version that an instance would serve by now, which it could on this machine."""
        catalog = read_catalog(self.store)
        assert catalog.problems == {}
        model = catalog.models["toy"]
        (version,) = [one for one in survey(self.store).versions if one.manifest == model.manifest]
        for digest in version.targets:
            target = read_target(self.store, model, digest)
            assert target is not None
            assert target.executables
        return model.manifest.version


class Whole:
    """What an undisturbed publish does: its steps, its version, and what is there in the end."""

    def __init__(self, publishers: Publishers, before: Toy, folder: Path) -> None:
        store = Killed(before, folder)
        done = publishers.publish(store.toy)
        assert done["status"] == 0
        self.steps = [tuple(step) for step in done["steps"]]
        self.version = done["summary"]["version"]
        self.paths = store.paths()
        (version,) = [one for one in survey(store.store).versions if one.manifest.version == self.version]
        (target,) = version.targets.values()
        self.executables = {executable_path(spec.key) for spec in target.executables}
        self.references = target.references
        assert done["summary"]["compiled"] == len(self.executables) == 2  # of each lane one

    def number(self, path: str) -> int:
        """Of the step that writes a path for the last time."""
        return max(number for number, (_, found) in enumerate(self.steps) if found == path)


def assert_nothing_half_done_is_visible(store: Killed, whole: Whole, done_steps: int) -> None:
    found = store.verified()
    assert (found.faults, found.missing, found.problems) == ({}, {}, {})
    visible = {version.manifest.version for version in survey(store.store).versions}
    complete = done_steps > whole.number(manifest_path("toy", whole.version))
    assert visible == ({store.first, whole.version} if complete else {store.first})
    served = done_steps > whole.number(serving_path("toy"))
    assert store.served() == (whole.version if served else store.first)
    assert store.there <= store.paths()


def assert_the_next_publish_ends_it(publishers: Publishers, store: Killed, whole: Whole) -> None:
    missing = whole.executables - store.paths()
    finished = {path.replace("executables/", "leases/") for path in whole.executables - missing}
    store.shorten_leases()
    done = publishers.publish(store.toy)
    assert (done["status"], done["summary"]["version"]) == (0, whole.version)
    assert done["summary"]["compiled"] == len(missing)
    assert len([step for step in done["compiled"] if "reference" not in step]) == len(missing)
    left = store.paths() - whole.paths
    assert left <= finished  # leases of what the dead one had finished, which nobody needs any more
    assert store.paths() - left == whole.paths
    assert store.served() == whole.version
    found = store.verified()
    assert (found.faults, found.missing, found.problems) == ({}, {}, {})
    (version,) = [one for one in survey(store.store).versions if one.manifest.version == whole.version]
    (target,) = version.targets.values()
    assert {executable_path(spec.key) for spec in target.executables} == whole.executables
    assert target.references == whole.references
    again = publishers.publish(store.toy)
    assert (again["summary"]["compiled"], again["steps"]) == (0, [])


def test_killed_at_any_step_nothing_half_done_is_visible_and_the_next_publish_ends_it(publishers, before, tmp_path):
    """Of a bucket for two lanes, so that one of the executables may be there and the other not."""
    whole = Whole(publishers, before, tmp_path / "whole")
    kinds = [path.partition("/")[0] for _, path in whole.steps]
    assert kinds.count("executables") == 3  # a reference among them
    assert kinds[-3:] == ["weights", "models", "models"]
    assert "leases" in kinds
    writing = [number for number, (operation, _) in enumerate(whole.steps) if operation in WRITES]
    assert len(writing) > len(whole.steps) // 2
    assert len(writing) < len(whole.steps)
    for number in range(len(whole.steps) + 1):
        store = Killed(before, tmp_path / f"killed-{number}")
        torn = number in writing
        assert publishers.publish(store.toy, kill=number, torn=torn)["status"] == -signal.SIGKILL, number
        if torn:
            assert list(store.toy.store.rglob(".unfinished-*")), "it was not killed in the middle"
        assert_nothing_half_done_is_visible(store, whole, number)
        assert_the_next_publish_ends_it(publishers, store, whole)
