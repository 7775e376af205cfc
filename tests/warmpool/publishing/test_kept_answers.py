from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache.errors import StoreUnavailable
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import Signer, Trust
from warmpool.manifest import DimSpec, Manifest, MethodSpec, TensorSpec, ToleranceSpec, WeightsSpec
from warmpool.publishing.draft import Draft
from warmpool.publishing.export import Exported
from warmpool.publishing.kept_answers import KEPT_BYTES_MAX, KeptAnswers
from warmpool.publishing.program import Program
from warmpool.publishing.subject import VARIANTS, Row, Subject
from warmpool.publishing.values import VALUES, garbage, generator_of

POINT = {"seq": 3}
SIGNER = Signer.generate()
TRUST = Trust.of([SIGNER.public])


def draft_of(
    folder: Path,
    *,
    method: str = "predict",
    program: str = "p",
    weights: str = "w",
    high: float = 1.0,
    symbolic: bool = True,
) -> Draft:
    shape = ("batch", "seq")
    spec = MethodSpec(
        programs={"*": program},
        symbolic=symbolic,
        inputs=(TensorSpec(name="x", dtype="float32", shape=shape, low=0.0, high=high),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=shape),),
    )
    manifest = Manifest(
        model="toy",
        version="1",
        default_method=method,
        dims=(DimSpec(name="batch", max=2, sizes=(1, 2), batch=True), DimSpec(name="seq", max=4, sizes=(4,))),
        methods={method: spec},
        weights=WeightsSpec(digest=weights, size_bytes=0, tensors=()),
        tolerance=ToleranceSpec(rtol=0.0, atol=0.0),
    )
    made = Program(program, ("cpu",), b"stored")
    programs = {"*" if symbolic else "batch=1,seq=4": made}
    exported = {method: Exported(spec, programs, (), lambda _: made, None)}
    return Draft(manifest, content_named=False, entries=(), exported=exported, folder=folder)


@pytest.fixture
def store(tmp_path: Path) -> SignedStore:
    return SignedStore(LocalStore(tmp_path / "store"), TRUST, SIGNER)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    file = tmp_path / "answers"
    file.write_bytes(b"what plain JAX answered")
    return file


def fetched(store: SignedStore, draft: Draft, point: dict[str, int] = POINT, platform: str = "cpu") -> bytes | None:
    file = draft.folder / "fetched"
    method = draft.manifest.default_method
    return file.read_bytes() if KeptAnswers(store, draft, platform).fetch(method, point, file) else None


def test_answers_come_back_as_they_were_for_the_very_same_question_only(
    store: SignedStore, answers: Path, tmp_path: Path
) -> None:
    KeptAnswers(store, draft_of(tmp_path), "cpu").keep("predict", POINT, answers)
    assert fetched(store, draft_of(tmp_path)) == answers.read_bytes()
    for other in ({"method": "invert"}, {"program": "q"}, {"weights": "v"}, {"high": 2.0}):
        changes: Any = other
        assert fetched(store, draft_of(tmp_path, **changes)) is None, other
    assert fetched(store, draft_of(tmp_path), {"seq": 2}) is None
    assert fetched(store, draft_of(tmp_path), platform="cuda") is None


def test_who_is_in_no_hurry_keeps_answers_and_uses_none(store: SignedStore, answers: Path, tmp_path: Path) -> None:
    kept = KeptAnswers(store, draft_of(tmp_path), "cpu", used=False)
    kept.keep("predict", POINT, answers)
    assert not kept.fetch("predict", POINT, tmp_path / "fetched")
    assert fetched(store, draft_of(tmp_path)) == answers.read_bytes()


def test_where_each_shape_has_a_program_of_its_own_nothing_is_kept(
    store: SignedStore, answers: Path, tmp_path: Path
) -> None:
    draft = draft_of(tmp_path, symbolic=False)
    KeptAnswers(store, draft, "cpu").keep("predict", POINT, answers)
    assert [*store.entries("answers")] == []
    assert fetched(store, draft) is None


def test_what_is_large_is_not_kept(store: SignedStore, answers: Path, tmp_path: Path) -> None:
    answers.write_bytes(bytes(KEPT_BYTES_MAX + 1))
    KeptAnswers(store, draft_of(tmp_path), "cpu").keep("predict", POINT, answers)
    assert [*store.entries("answers")] == []


def test_what_is_damaged_or_of_nobody_who_is_trusted_is_not_used_and_replaced(
    store: SignedStore, answers: Path, tmp_path: Path
) -> None:
    kept = KeptAnswers(store, draft_of(tmp_path), "cpu")
    kept.keep("predict", POINT, answers)
    (entry,) = store.entries("answers")
    whole = store.inner.get(entry.path)
    other = Signer.generate()
    stranger = SignedStore(LocalStore(tmp_path / "other"), Trust.of([other.public]), other)
    KeptAnswers(stranger, draft_of(tmp_path), "cpu").keep("predict", POINT, answers)
    for data in (whole[:-40], b"", bytes([whole[0] ^ 1]) + whole[1:], stranger.inner.get(entry.path)):
        store.inner.put(entry.path, data)
        assert fetched(store, draft_of(tmp_path)) is None
    store.inner.put(entry.path, whole[:-40])
    kept.keep("predict", POINT, answers)
    assert fetched(store, draft_of(tmp_path)) == answers.read_bytes()


def test_that_nothing_can_be_kept_stops_nobody(
    store: SignedStore, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StoreUnavailable("the disk is full", told="the disk is full")

    monkeypatch.setattr(SignedStore, "put", full)
    kept = KeptAnswers(store, draft_of(tmp_path), "cpu")
    kept.keep("predict", POINT, answers)
    kept.keep("predict", POINT, tmp_path / "no such file")


def test_values_are_drawn_as_they_were_when_answers_to_them_were_kept(tmp_path: Path) -> None:
    """If this fails, what is drawn has changed: `VALUES` has to be another one, and so has this digest."""
    subject = Subject(draft_of(tmp_path).manifest, "predict")
    drawn = hashlib.sha256()
    for variant in range(VARIANTS):
        for array in subject.exact(Row(POINT, variant)):
            drawn.update(np.ascontiguousarray(array).tobytes())
    spec = draft_of(tmp_path).manifest.methods["predict"].inputs[0]
    drawn.update(garbage(spec, (2, 3), generator_of("a name")).tobytes())
    assert (VALUES, drawn.hexdigest()[:16]) == ("1", "3234e22a7bb9bdd6")
