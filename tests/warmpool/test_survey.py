"""What the manifests of a store need, and which of its documents cannot be relied on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cache.errors import StoreUnavailable, Unreadable
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.cared_store import CPU, OLDER, STRANGER, TPU, CaredStore
from warmpool.survey import survey


@pytest.fixture
def cared(tmp_path):
    return CaredStore(tmp_path)


def names(found):
    return {version.name: (sorted(version.targets), version.stable) for version in found.versions}


def test_an_empty_store_needs_nothing(cared):
    found = survey(cared.store)
    assert (found.versions, found.served, found.problems) == ([], {}, {})


def test_every_version_is_found_with_its_targets_and_which_one_is_served(cared):
    cared.publish(version="1", machines=(CPU, TPU))
    cared.publish(version="2", machines=(CPU,))
    cared.publish("other", machines=())
    found = survey(cared.store)
    assert names(found) == {
        "toy/1": (sorted((CPU.digest, TPU.digest)), False),
        "toy/2": ([CPU.digest], True),
        "other/1": ([], True),
    }
    assert found.served == {"toy": "2", "other": "1"}
    assert found.problems == {}
    assert {(version.name, digest) for version, digest, _ in found.executables()} == {
        ("toy/1", CPU.digest),
        ("toy/1", TPU.digest),
        ("toy/2", CPU.digest),
    }


def test_what_cannot_be_read_here_is_a_problem_of_that_model_alone(cared, monkeypatch):
    cared.publish()
    cared.publish("other")
    really = SignedStore.get
    forbidden = "models/toy/1/manifest.json"

    def get(store, path, **limit):
        if path == forbidden:
            raise Unreadable("no permission")
        return really(store, path, **limit)

    monkeypatch.setattr(SignedStore, "get", get)
    found = survey(cared.store)
    assert list(names(found)) == ["other/1"]
    assert found.problems == {forbidden: "no permission"}


def test_what_versions_need_is_all_that_was_published(cared):
    cared.publish(machines=(CPU, TPU), references=(7,))
    (version,) = survey(cared.store).versions
    needed = set(version.paths()).union(*map(version.target_paths, version.targets))
    assert needed == cared.paths()
    assert set(version.content_paths()) == {
        path for path in cared.paths() if path.startswith(("weights/", "programs/"))
    }
    references = set(version.target_paths(CPU.digest)) - {cared.target(CPU), *cared.executables(CPU)}
    assert len(references) == 1


def test_a_version_without_a_manifest_is_not_there_and_no_problem(cared):
    cared.publish()
    cared.bottom.delete("models/toy/1/manifest.json")
    cared.bottom.put("models/notes.txt", b"a file where a model would be")
    found = survey(cared.store)
    assert (found.versions, found.problems) == ([], {})
    assert found.served == {"toy": "1"}


EDITS: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    "manifest.json": {
        "another version's": ({"version": "2"}, "it is that of toy/2"),
        "another model's": ({"model": "other"}, "it is that of other/1"),
        "of a format to come": ({"format": 2}, "its format is 2, this release reads 1"),
        "with a field to come": ({"surprise": 1}, "Object contains unknown field `surprise`"),
    },
    "targets": {
        "of other machines": ({"fingerprint": dict(OLDER.ingredients)}, f"it is for machines {OLDER.digest}"),
        "of a format to come": ({"format": 2}, "its format is 2, this release reads 1"),
        "with a field to come": ({"surprise": 1}, "Object contains unknown field `surprise`"),
    },
    "serving.json": {"of a format to come": ({"format": 2}, "its format is 2, this release reads 1")},
}


@pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind, edits in EDITS.items() for how in edits])
def test_a_sealed_document_that_does_not_belong_there_is_a_problem(cared, kind, how):
    """Whoever signed it: what it needs is not known."""
    cared.publish(machines=(CPU, TPU))
    path = {
        "manifest.json": "models/toy/1/manifest.json",
        "targets": cared.target(CPU),
        "serving.json": "models/toy/serving.json",
    }[kind]
    changes, problem = EDITS[kind][how]
    cared.store.put(path, json.dumps(json.loads(cared.store.get(path)) | changes).encode() + b"\n")
    found = survey(cared.store)
    assert list(found.problems) == [path]
    assert problem in found.problems[path]
    assert (
        names(found)
        == {
            "manifest.json": {},
            "targets": {"toy/1": ([TPU.digest], True)},
            "serving.json": {"toy/1": (sorted((CPU.digest, TPU.digest)), False)},
        }[kind]
    )


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 1}\n', b"\xff\xfe\n"])
def test_a_document_that_cannot_be_read_is_a_problem_even_where_anything_is_taken(cared, damage):
    cared.publish()
    cared.bottom.put("models/toy/1/manifest.json", damage)
    found = survey(SignedStore(cared.bottom, ANYONE))
    assert list(found.problems) == ["models/toy/1/manifest.json"]
    assert found.versions == []


def test_a_document_that_nobody_trusted_signed_is_a_problem(cared):
    cared.publish()
    SignedStore(cared.bottom, ANYONE, STRANGER).put(cared.target(CPU), cared.store.get(cared.target(CPU)))
    found = survey(cared.store)
    assert "which is not trusted here" in found.problems[cared.target(CPU)]
    assert names(found) == {"toy/1": ([], True)}


def test_a_store_that_cannot_be_read_is_no_empty_store(cared):
    cared.publish()
    cared.file("models").rename(cared.file("away"))
    cared.file("models").symlink_to(cared.file("models"))
    with pytest.raises(StoreUnavailable):
        survey(cared.store)


@pytest.mark.parametrize("name", ["models/toy/serving.json", "models/toy/1/manifest.json", "target"])
def test_a_document_that_is_nested_without_end_is_a_problem_where_nobody_has_to_sign(cared, name):
    cared.publish()
    path = cared.target(CPU) if name == "target" else name
    cared.bottom.put(path, b'{"x":' + b"[" * 200_000)
    assert set(survey(SignedStore(cared.bottom, ANYONE)).problems) == {path}
