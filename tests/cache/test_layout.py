"""One table says what every folder of a store holds, and a path in none of them is refused."""

from __future__ import annotations

from typing import get_args

import pytest

from cache import failures, jax_cache_sync, lease, quarantine, sightings, signed_store, wanted
from cache.data_keys import FileKey, read_keys
from cache.encrypted_store import EncryptedStore
from cache.encryption import is_envelope
from cache.errors import NotStored
from cache.layout import CHECKED_FOLDERS, FOLDERS, Kind, folder_of
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from warmpool import manifest, traffic_record
from warmpool.rollout import record

UNKNOWN = ["x", "models", "executable/a", "Models/a", "secrets/a", "model/toy/serving.json", "weights2/a"]


def test_every_path_that_is_written_has_a_row():
    paths = [
        manifest.executable_path("k"),
        manifest.program_path("k"),
        manifest.answers_path("k"),
        manifest.weights_path("k"),
        manifest.serving_path("toy"),
        manifest.manifest_path("toy", "1"),
        manifest.target_path("toy", "1", "f"),
        *(f"{one.FOLDER}/k" for one in (failures, jax_cache_sync, lease, quarantine, sightings, wanted)),
        f"{signed_store.DISTRUSTED}/k",
        f"{failures.BREAKERS}/p-f/k",
        traffic_record.record_path("toy", "i"),
        record.record_path("toy", manifest.RolloutSpec(started_s=1.0)),
    ]
    assert {path.partition("/")[0] for path in paths} == set(FOLDERS)
    assert all(folder_of(path) for path in paths)


def test_every_kind_of_artifact_has_one_folder_and_nothing_else_has_a_kind():
    assert sorted(folder.kind for folder in FOLDERS.values() if folder.kind) == sorted(get_args(Kind))
    for folder in FOLDERS.values():
        assert (folder.kind is not None) == (folder.content == "artifact")


def test_what_makes_answers_is_checked_and_what_is_large_and_checked_is_secret():
    assert set(CHECKED_FOLDERS) == {"executables", "programs", "answers", "weights", "models", "jax-cache"}
    assert {name for name, folder in FOLDERS.items() if folder.secret} == set(CHECKED_FOLDERS) - {"models"}
    assert all(folder.immutable == folder.secret for folder in FOLDERS.values())


@pytest.mark.parametrize("path", UNKNOWN)
def test_a_path_in_no_folder_of_a_store_is_neither_written_nor_read(tmp_path, path):
    inner = LocalStore(tmp_path / "store")
    store = SignedStore(inner, ANYONE)
    (tmp_path / "source").write_bytes(b"x")
    for ask in (
        lambda: store.put(path, b"x"),
        lambda: store.put_file(path, tmp_path / "source"),
        lambda: store.put_if(path, b"x", None),
        lambda: store.get(path),
        lambda: store.get(path, bytes_max=1),
        lambda: store.get_versioned(path),
        lambda: store.local_path(path),
    ):
        with pytest.raises(ValueError, match=rf"^'{path}' is in no folder of a store; there are executables, progr"):
            ask()
    assert list(inner.entries("")) == []


def test_what_no_row_says_anything_of_is_encrypted(tmp_path):
    """Whoever adds a folder and forgets the table must not publish a secret."""
    inner = LocalStore(tmp_path / "store")
    FileKey.write(tmp_path / "key")
    store = EncryptedStore(inner, read_keys(str(tmp_path / "key")))
    store.put("secrets/a", b"x")
    assert is_envelope(inner.get("secrets/a"))
    assert store.get("secrets/a") == b"x"
    with pytest.raises(NotStored):
        store.get("secrets/b")
