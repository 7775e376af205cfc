"""What a publish signs is, byte for byte, what it was to make and what it tried, whatever happens to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache.artifact import pack, unpack
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.signing import ANYONE
from tests.warmpool.publishing.toy import Toy
from warmpool.errors import PublishError
from warmpool.manifest import executable_path
from warmpool.publishing.entries import Entry
from warmpool.publishing.jobs import Jobs
from warmpool.survey import survey

pytestmark = pytest.mark.slow

NO_CODE = b"no code at all"


def changed(entry: Entry, file: Path, payload: bytes | None = None, **changes: Any) -> None:
    """Replace an artifact by another sound one."""
    header, found = unpack(file.read_bytes(), key=entry.key, trust=ANYONE)
    file.write_bytes(pack(msgspec.structs.replace(header, **changes), payload or bytes(found)))


def around_trials(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[Entry, Path], None] = lambda entry, file: None,
    after: Callable[[Entry, Path], None] = lambda entry, file: None,
) -> None:
    really = Jobs._trial

    def trial(self: Jobs, entry: Entry, artifact: Path, digest: str, **told: Any) -> Any:
        before(entry, artifact)
        result = really(self, entry, artifact, digest, **told)
        after(entry, artifact)
        return result

    monkeypatch.setattr(Jobs, "_trial", trial)


@pytest.mark.parametrize("what", ["ingredients", "kind", "key"])
def test_what_is_not_what_was_asked_for_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    toy = Toy(tmp_path, seq=2)
    really = Jobs._compile
    others: dict[str, Any] = {"ingredients": {"program": "another"}, "kind": "program", "key": "ab" * 32}

    def compile_another(self: Jobs, entry: Entry, *rest: Any) -> Path:
        file = really(self, entry, *rest)
        changed(entry, file, **{what: others[what]})
        return file

    monkeypatch.setattr(Jobs, "_compile", compile_another)
    with pytest.raises(PublishError, match=r"what was compiled cannot be stored: .* was made for something else"):
        toy.publish()
    assert LocalStore(toy.store).names("executables") == []


def test_what_is_changed_after_its_trial_is_stored_as_it_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(tmp_path, seq=2)
    around_trials(monkeypatch, after=lambda entry, file: changed(entry, file, NO_CODE))
    summary, _ = toy.publish()
    assert summary.compiled == 2
    store = open_store(toy.settings)
    (version,) = survey(store).versions
    (target,) = version.targets.values()
    for key in (*(spec.key for spec in target.executables), *target.references):
        _, payload = unpack(store.get(executable_path(key)), key=key, trust=store.trust)
        assert bytes(payload) != NO_CODE


def test_what_is_changed_before_its_trial_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By something that answers as well as it does."""
    toy = Toy(tmp_path, seq=2)
    around_trials(monkeypatch, before=lambda entry, file: changed(entry, file, calling=None))
    with pytest.raises(PublishError, match="its artifact was changed while it was tried"):
        toy.publish()
    assert LocalStore(toy.store).names("executables") == []
