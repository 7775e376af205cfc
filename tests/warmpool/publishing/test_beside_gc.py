"""A sweep beside a publish: whatever the order of what they do, what is visible in the end has all that it needs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cache.local_store import LocalStore
from cache.opening import open_store
from cache.signed_store import SignedStore
from tests.cache.meddling import MeddledStore
from tests.warmpool.publishing.toy import Toy
from warmpool.cache_commands.gc import Unreadable, collect
from warmpool.cache_commands.verify import verify
from warmpool.errors import PublishError
from warmpool.publishing import publish as publishing
from warmpool.survey import survey

DAY_S = 24 * 3600.0
VERSION = "models/toy/1"

pytestmark = pytest.mark.slow


def meddled(toy: Toy, bottom: LocalStore) -> SignedStore:
    """The store as it is opened, but for what happens meanwhile."""
    store = open_store(toy.settings)
    return SignedStore(bottom, store.trust, store.signer)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a toy that was published; no test changes it."""
    folder = tmp_path_factory.mktemp("published")
    Toy(folder, seq=2).publish("1")
    return folder


@pytest.fixture
def toy(published: Path, tmp_path: Path) -> Toy:
    """A copy of it."""
    return Toy(Path(shutil.copytree(published, tmp_path / "copy")), seq=2)


def given_up(toy: Toy) -> SignedStore:
    """It was published two days ago, and its manifest taken away: nobody needs what it consists of."""
    store = open_store(toy.settings)
    written_s = time.time() - 2 * DAY_S
    for entry in list(store.bottom.entries("")):
        os.utime(toy.store / entry.path, (written_s, written_s))
    store.bottom.delete(f"{VERSION}/manifest.json")
    return store


def sweep(store: SignedStore) -> set[str]:
    swept = collect(store, survey(store), keep_s=90 * DAY_S, grace_s=DAY_S, dry_run=False)
    return {entry.path for entry in swept.removed}


def assert_whole(toy: Toy) -> None:
    store = open_store(toy.settings)
    found = survey(store)
    assert [version.name for version in found.versions] == ["toy/1"]
    verified = verify(store, found)
    assert (verified.missing, verified.faults, verified.problems) == ({}, {}, {})


def test_without_a_publish_what_was_given_up_goes(toy: Toy) -> None:
    removed = sweep(given_up(toy))
    assert {path.partition("/")[0] for path in removed} == {"executables", "models", "programs", "weights"}


@pytest.mark.parametrize("moment", [0, 4])
def test_a_publish_that_uses_again_what_is_about_to_be_removed(toy: Toy, moment: int) -> None:
    """After the sweep knows what it would remove: before it removes the first, and the last but one."""
    given_up(toy)
    bottom = MeddledStore(toy.store)
    left = [moment]

    def publish(operation: str, _: str) -> None:
        if operation in {"delete", "delete_if"}:
            if left[0] == 0:
                toy.publish("1")
            left[0] -= 1

    bottom.before = publish
    removed = sweep(meddled(toy, bottom))
    assert left[0] < 0
    assert len(removed) == moment
    assert_whole(toy)
    assert open_store(toy.settings).names("models/toy") == ["1", "serving.json"]


def test_a_version_that_becomes_visible_while_a_sweep_looks_around_keeps_what_it_needs(toy: Toy) -> None:
    """Even where nobody let its objects be young: an operator who puts a manifest back."""
    manifest = (toy.store / VERSION / "manifest.json").read_bytes()
    store = given_up(toy)
    found = survey(store)
    LocalStore(toy.store).put(f"{VERSION}/manifest.json", manifest)
    swept = collect(store, found, keep_s=90 * DAY_S, grace_s=DAY_S, dry_run=False)
    assert swept.removed == []
    assert_whole(toy)


def test_what_cannot_be_read_at_the_second_look_stops_a_sweep_too(toy: Toy) -> None:
    store = given_up(toy)
    found = survey(store)
    before = {entry.path for entry in store.bottom.entries("")}
    LocalStore(toy.store).put(f"{VERSION}/manifest.json", b"{")
    with pytest.raises(Unreadable):
        collect(store, found, keep_s=90 * DAY_S, grace_s=DAY_S, dry_run=False)
    assert before <= {entry.path for entry in store.bottom.entries("")}


KINDS = ("weights/", "programs/", "executables/", f"{VERSION}/targets/")


@pytest.mark.parametrize("kind", [*KINDS, "everything"])
def test_what_is_removed_just_before_a_version_is_visible_is_stored_again(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By somebody who does not ask whether it was written since."""
    toy = Toy(tmp_path, seq=2)

    def remove(other: LocalStore) -> None:
        for entry in list(other.entries("")):
            if entry.path.startswith(KINDS if kind == "everything" else kind):
                other.delete(entry.path)

    _meddle_at_the_manifest(toy, monkeypatch, remove)
    summary, _ = toy.publish("1")
    assert any(note.startswith("removed from the store while it was published") for note in summary.notes)
    assert_whole(toy)


def test_a_name_that_somebody_else_takes_meanwhile_is_not_taken_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(tmp_path, seq=2)

    def take(_: LocalStore) -> None:
        monkeypatch.setattr(publishing, "open_store", open_store)
        toy.publish("1", factor=5.0)

    _meddle_at_the_manifest(toy, monkeypatch, take)
    with pytest.raises(PublishError, match="is published with other weights"):
        toy.publish("1")
    (version,) = survey(open_store(toy.settings)).versions
    assert LocalStore(toy.store).names("weights").count(version.manifest.weights.digest) == 1


def _meddle_at_the_manifest(toy: Toy, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[LocalStore], None]) -> None:
    bottom = MeddledStore(toy.store)

    def at_the_manifest(operation: str, path: str) -> None:
        if operation in {"put", "put_if"} and path == f"{VERSION}/manifest.json":
            bottom.before = lambda operation, path: None
            meddle(LocalStore(toy.store))

    bottom.before = at_the_manifest
    monkeypatch.setattr(publishing, "open_store", lambda _: meddled(toy, bottom))
