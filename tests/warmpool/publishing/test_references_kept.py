"""The references below the smallest bucket: recorded by every target, so that new weights compile nothing for ever."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cache.artifact import Header, pack
from cache.local_store import LocalStore
from cache.opening import open_store
from tests.warmpool.publishing.test_known import FIRST, SECOND, Publish
from tests.warmpool.publishing.toy import Toy
from warmpool.cache_commands.gc import collect
from warmpool.cache_commands.verify import verify
from warmpool.errors import PublishError
from warmpool.manifest import executable_path
from warmpool.publishing.reference_runs import ReferenceRuns
from warmpool.survey import survey

DAY_S = 24 * 3600.0


def test_references_are_recorded_with_the_next_proof_and_kept_by_whoever_adds_to_the_target(tmp_path: Path) -> None:
    one, other = Publish(tmp_path), Publish(tmp_path)
    one.known.refer("edge-b")
    one.prove(FIRST)
    assert one.stored().references == ("edge-b",)
    other.known.refer("edge-a")
    other.prove(SECOND)
    assert other.stored().references == ("edge-a", "edge-b")
    one.known.read()
    assert one.known.target() == other.stored()


def test_under_a_name_of_somebodys_choice_the_references_of_what_was_begun_do_not_count(tmp_path: Path) -> None:
    one = Publish(tmp_path)
    one.known.refer("edge-a")
    one.prove(FIRST)
    again = Publish(tmp_path, trusted=False)
    again.known.read()
    assert again.known.target().references == ()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a toy that was published; no test changes it."""
    folder = tmp_path_factory.mktemp("published")
    first, heard = Toy(folder).publish()
    assert (first.compiled, len(heard.compiled)) == (2, 5)
    assert first.references == 3  # at 1, 2 and 3: the bucket's own size its compile ran
    return folder


@pytest.fixture
def toy(published: Path, tmp_path: Path) -> Toy:
    """A copy of it."""
    return Toy(Path(shutil.copytree(published, tmp_path / "copy")))


@pytest.mark.slow
def test_new_weights_compile_nothing_after_everything_that_is_not_needed_was_removed(toy: Toy) -> None:
    """Whichever version made the references, and however many versions of other weights there were since."""
    store = open_store(toy.settings)
    bottom = LocalStore(toy.store)
    for factor in (3.0, 4.0):
        written_s = time.time() - 2 * DAY_S
        bottom.put("executables/stray", b"x")
        for entry in list(bottom.entries("")):
            os.utime(toy.store / entry.path, (written_s, written_s))
        swept = collect(store, survey(store), keep_s=90 * DAY_S, grace_s=DAY_S, dry_run=False)
        removed = {entry.path for entry in swept.removed}
        assert {path for path in removed if path.startswith(("executables/", "programs/"))} == {"executables/stray"}
        summary, heard = toy.publish(factor=factor)
        assert (summary.compiled, summary.reused, heard.compiled) == (0, 2, [])
        for old in (version for version in survey(store).versions if not version.stable):
            bottom.delete(f"models/toy/{old.manifest.version}/manifest.json")  # given up
    (version,) = survey(store).versions
    (target,) = version.targets.values()
    assert len(target.references) == 2
    assert {executable_path(key) for key in target.references} <= {entry.path for entry in bottom.entries("")}
    assert verify(store, survey(store)).missing == {}


@pytest.mark.slow
def test_a_reference_that_does_not_load_again_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who compiled it ran it, which says nothing of what was serialised."""
    toy = Toy(tmp_path, seq=2)
    really = ReferenceRuns._run

    def damaging(self: ReferenceRuns, worker: str, entry: Any, point: Any, **more: Any) -> str:
        outputs = really(self, worker, entry, point, **more)
        if more["artifact"]:
            Path(more["artifact"]).write_bytes(pack(Header(key=entry.key, ingredients=entry.ingredients), b"no code"))
        return outputs

    monkeypatch.setattr(ReferenceRuns, "_run", damaging)
    with pytest.raises(PublishError, match="its trial run"):
        toy.publish()
    assert LocalStore(toy.store).names("executables") == []


@pytest.mark.slow
def test_a_publish_that_compiles_nothing_but_references_says_so(toy: Toy) -> None:
    (version,) = survey(open_store(toy.settings)).versions
    for target in version.targets.values():
        for key in target.references:
            LocalStore(toy.store).delete(executable_path(key))
    again, heard = toy.publish(factor=3.0)
    assert (again.compiled, again.references, len(heard.compiled)) == (0, 2, 2)
    assert "nothing compiled but references (2), all 2 executables are in the store" in str(again)
    last, heard = toy.publish(factor=4.0)
    assert (last.compiled, last.references, heard.compiled) == (0, 0, [])
    assert "nothing compiled, all" in str(last)
