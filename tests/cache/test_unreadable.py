"""One object that this process cannot read says nothing of itself, of others, or of the store."""

from __future__ import annotations

import errno

import pytest

from cache.data_keys import FileKey, read_keys
from cache.encrypted_store import EncryptedStore
from cache.errors import StoreUnavailable, Unreadable, not_read, told
from cache.local_store import LocalStore
from cache.read_through import ReadThroughStore


@pytest.fixture
def place(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.mark.parametrize("given", ["", "another"])
def test_without_its_key_an_object_is_unreadable(place, tmp_path, given):
    for name in ("its", "another"):
        FileKey.write(tmp_path / name)
    its = EncryptedStore(place, read_keys(str(tmp_path / "its")))
    its.put("executables/k", b"content")
    other = EncryptedStore(place, read_keys(str(tmp_path / given)) if given else None)
    for call in (other.get, other.local_path, other.get_versioned):
        with pytest.raises(Unreadable, match=r"^'executables/k' .*encryption_key") as caught:
            call("executables/k")
        assert "encrypted" in told(caught.value)


def test_a_key_that_cannot_be_asked_is_trouble_of_the_store(place, tmp_path, monkeypatch):
    FileKey.write(tmp_path / "its")
    keys = read_keys(str(tmp_path / "its"))
    assert keys
    store = EncryptedStore(place, keys)
    store.put("executables/k", b"content")

    def away(name, wrapped):
        raise StoreUnavailable("the line is dead")

    monkeypatch.setattr(keys, "secret", away)
    with pytest.raises(StoreUnavailable) as caught:
        store.get("executables/k")
    assert not isinstance(caught.value, Unreadable)


@pytest.mark.parametrize(("number", "kind"), [(errno.EACCES, Unreadable), (errno.EPERM, Unreadable)])
def test_a_file_without_permission_is_unreadable(number, kind):
    error = not_read("weights/w", OSError(number, "why"))
    assert (type(error), str(error)) == (kind, "'weights/w': why")
    assert "permission" in told(error)


def test_a_file_that_fails_is_trouble_of_the_store():
    assert type(not_read("weights/w", OSError(errno.EIO, "why"))) is StoreUnavailable


def test_a_far_store_is_not_away_for_one_unreadable_object(place, tmp_path, caplog):
    class Far(LocalStore):
        def get(self, path, *, bytes_max=None):
            if path == "models/forbidden":
                raise Unreadable("no permission")
            return super().get(path, bytes_max=bytes_max)

    far = Far(place.root)
    far.put("models/m", b"old")
    store = ReadThroughStore(far, tmp_path / "near", 1 << 20)
    assert store.get("models/m") == b"old"
    with pytest.raises(Unreadable):
        store.get("models/forbidden")
    far.put("models/m", b"new")
    assert store.get("models/m") == b"new", "it was taken to be away"
    assert caplog.records == []
