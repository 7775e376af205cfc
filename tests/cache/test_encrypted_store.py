"""What lies in the store is unreadable, what comes out of it is what was put in, and lanes can map it."""

from __future__ import annotations

import errno
import gc
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cache.data_keys import DataKeys, FileKey
from cache.encrypted_store import EncryptedStore
from cache.encryption import CHUNK_BYTES, is_envelope
from cache.errors import Damaged, NotStored, StoreUnavailable
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from tests.cache.files_in_memory import files_in_memory
from warmpool.weights import WeightsFile

SECRET = b"what nobody else may read " * 10
LARGE = os.urandom(2 * CHUNK_BYTES + 7)
ENCRYPTED = ["weights/w", "executables/e", "programs/p", "jax-cache/j"]
PLAIN = ["models/m/serving.json", "leases/k", "wanted/k", "distrusted/k"]


@pytest.fixture
def inner(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def keys():
    return DataKeys([FileKey(os.urandom(32))])


@pytest.fixture
def store(inner, keys):
    return EncryptedStore(inner, keys)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source"
    file.write_bytes(LARGE)
    return file


@pytest.mark.parametrize("path", ENCRYPTED)
def test_weights_executables_and_programs_lie_encrypted_and_come_back(store, inner, source, path):
    store.put(path, SECRET)
    assert is_envelope(inner.get(path))
    assert SECRET[:26] not in inner.get(path)
    assert store.get(path) == store.local_path(path).read_bytes() == SECRET
    store.put_file(path, source)
    assert is_envelope(inner.get(path))
    assert store.get(path) == store.local_path(path).read_bytes() == LARGE
    assert store.unencrypted == 0


@pytest.mark.parametrize("path", PLAIN)
def test_documents_and_what_coordinates_a_fleet_lie_as_they_are(store, inner, source, path):
    store.put(path, SECRET)
    assert inner.get(path) == store.get(path) == SECRET
    assert store.local_path(path) == inner.local_path(path)
    store.put_file(path, source)
    assert inner.get(path) == LARGE


@pytest.mark.parametrize("size_bytes", [0, 1, 8, CHUNK_BYTES, CHUNK_BYTES + 1, len(LARGE), len(LARGE) + 5])
def test_the_start_of_an_object_is_decrypted_alone(store, inner, source, size_bytes):
    store.put_file("weights/w", source)
    assert store.get("weights/w", bytes_max=size_bytes) == LARGE[:size_bytes]
    # Damage behind what was asked for is not looked at.
    stored = inner.get("weights/w")
    inner.put("weights/w", stored[:-1] + bytes([stored[-1] ^ 1]))
    if size_bytes <= 2 * CHUNK_BYTES:
        assert store.get("weights/w", bytes_max=size_bytes) == LARGE[:size_bytes]
    else:
        with pytest.raises(Damaged):
            store.get("weights/w", bytes_max=size_bytes)


def test_the_other_methods_reach_the_store_below(store, inner):
    store.put("executables/b", SECRET)
    store.put("executables/a", SECRET)
    assert store.names("executables") == ["a", "b"]
    assert {entry.path for entry in store.entries("")} == {"executables/a", "executables/b"}
    store.delete("executables/a")
    assert inner.names("executables") == ["b"]
    with pytest.raises(NotStored):
        store.get("executables/a")
    with pytest.raises(NotStored):
        store.local_path("executables/a")


@pytest.mark.parametrize("path", ["leases/k", "executables/k"])
def test_comparing_works_on_content_of_either_kind(store, inner, path):
    first = store.put_if(path, b"one", None)
    assert store.put_if(path, b"two", None) is None
    assert store.get_versioned(path) == (b"one", first)
    assert is_envelope(inner.get(path)) == path.startswith("executables/")
    second = store.put_if(path, b"two", first)
    assert store.get_versioned(path) == (b"two", second)
    assert not store.delete_if(path, first)
    assert store.delete_if(path, second)
    with pytest.raises(NotStored):
        store.get_versioned(path)


# What is not encrypted, or cannot be decrypted


def test_what_was_stored_before_there_was_a_key_is_read_and_counted(store, inner, caplog):
    inner.put("weights/old", LARGE)
    with caplog.at_level(logging.WARNING):
        assert store.get("weights/old") == LARGE
        assert store.get("weights/old", bytes_max=5) == LARGE[:5]
        assert store.local_path("weights/old") == inner.local_path("weights/old")
    assert store.unencrypted == 3
    (record,) = caplog.records  # told once
    assert record.path == "weights/old"


def test_without_a_key_nothing_is_encrypted_or_counted(inner, source, caplog):
    store = EncryptedStore(inner, None)
    store.put("weights/a", SECRET)
    store.put_file("weights/b", source)
    assert (inner.get("weights/a"), inner.get("weights/b")) == (SECRET, LARGE)
    assert (store.get("weights/a"), store.unencrypted, caplog.records) == (SECRET, 0, [])


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("weights/w"),
        lambda store: store.get("weights/w", bytes_max=1),
        lambda store: store.local_path("weights/w"),
        lambda store: store.get_versioned("weights/w"),
    ],
)
def test_what_is_encrypted_where_no_key_is_given_names_the_setting(store, inner, read):
    """It is not damage: who made it anew would overwrite what others can read."""
    store.put("weights/w", SECRET)
    with pytest.raises(StoreUnavailable, match="'weights/w' is encrypted: give the key as encryption_key"):
        read(EncryptedStore(inner, None))


def test_another_key_is_named_beside_the_one_it_would_take_and_that_is_not_damage(store, inner):
    store.put("weights/w", SECRET)
    ours, theirs = FileKey(bytes(32)), store.keys._first
    with pytest.raises(StoreUnavailable) as caught:
        EncryptedStore(inner, DataKeys([ours])).get("weights/w")
    assert theirs.name in str(caught.value)
    assert ours.name in str(caught.value)


def test_an_old_key_still_decrypts_beside_the_new_one(inner, tmp_path):
    old = EncryptedStore(inner, DataKeys([FileKey(b"o" * 32)]))
    old.put("weights/old", SECRET)
    both = EncryptedStore(inner, DataKeys([FileKey(b"n" * 32), FileKey(b"o" * 32)]))
    both.put("weights/new", SECRET)
    assert both.get("weights/old") == both.get("weights/new") == SECRET
    with pytest.raises(StoreUnavailable):
        old.get("weights/new")


def test_damage_is_told_by_every_way_to_read_and_nothing_is_left_of_it(store, inner, source):
    store.put_file("weights/w", source)
    stored = bytearray(inner.get("weights/w"))
    stored[-20] ^= 1
    inner.put("weights/w", bytes(stored))
    before = files_in_memory()
    for read in (store.get, store.local_path, store.get_versioned):
        with pytest.raises(Damaged, match="'weights/w' is damaged: its encrypted chunk 2"):
            read("weights/w")
    assert not files_in_memory() - before


def test_an_object_that_was_copied_to_another_path_is_not_taken(store, inner):
    store.put("executables/a", SECRET)
    inner.put("executables/b", inner.get("executables/a"))
    with pytest.raises(Damaged):
        store.get("executables/b")


# Files in memory


def test_a_local_file_is_the_same_one_until_it_is_discarded(store):
    store.put("weights/w", LARGE)
    path = store.local_path("weights/w")
    identity = identity_of(path)
    assert store.local_path("weights/w") == path
    assert identity_of(path) == identity
    store.discard("weights/w")
    assert not path.exists()
    assert identity_of(store.local_path("weights/w")) != identity


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.put("weights/w", b"new"),
        lambda store: store.put_file("weights/w", Path(__file__)),
        lambda store: store.put_if("weights/w", b"new", store.get_versioned("weights/w")[1]),
    ],
)
def test_a_local_file_of_what_was_replaced_is_a_new_one(store, change):
    store.put("weights/w", b"old")
    assert store.local_path("weights/w").read_bytes() == b"old"
    change(store)
    assert store.local_path("weights/w").read_bytes() == store.get("weights/w") != b"old"


def test_a_local_file_of_what_was_deleted_is_gone(store):
    store.put("weights/w", b"old")
    path = store.local_path("weights/w")
    store.delete("weights/w")
    assert not path.exists()
    with pytest.raises(NotStored):
        store.local_path("weights/w")


def test_nobody_can_change_a_file_in_memory(store):
    store.put("weights/w", SECRET)
    path = store.local_path("weights/w")
    for change in (
        lambda stream: stream.write(b"x"),
        lambda stream: stream.truncate(1),
        lambda stream: stream.truncate(1 << 20),
        lambda stream: mmap.mmap(stream.fileno(), 0),
    ):
        with pytest.raises(PermissionError), path.open("r+b", buffering=0) as stream:
            change(stream)
    assert path.read_bytes() == SECRET


def test_nothing_decrypted_is_ever_written_to_a_folder(store, tmp_path, source, monkeypatch):
    """What is written beside the store is an envelope too."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    seen: list[bytes] = []

    class Watched(LocalStore):
        def put_file(self, path, source):
            seen.extend(file.read_bytes() for file in scratch.iterdir())
            super().put_file(path, source)

    watched = EncryptedStore(Watched(tmp_path / "store"), store.keys)
    watched.put_file("weights/w", source)
    watched.local_path("weights/w")
    assert [is_envelope(found) for found in seen] == [True]
    assert list(scratch.iterdir()) == []
    assert str(watched.local_path("weights/w").readlink()).startswith("/memfd:")


_HOLDER = """
import os, sys
from pathlib import Path
from cache.data_keys import DataKeys, FileKey
from cache.encrypted_store import EncryptedStore
from cache.local_store import LocalStore
store = EncryptedStore(LocalStore(Path(sys.argv[1])), DataKeys([FileKey(bytes(32))]))
store.put("weights/w", b"content" * 1000)
print(store.local_path("weights/w"), flush=True)
sys.stdin.read()
"""


def test_another_process_maps_the_file_and_keeps_its_content_when_the_holder_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout
        path = Path(holder.stdout.readline().decode().strip())
        assert f"/proc/{holder.pid}/fd/" in str(path)
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    assert not path.exists()  # the name, and with the last mapping the memory
    assert mapped[:] == b"content" * 1000
    mapped.close()


def test_files_in_memory_go_with_the_store_that_made_them(inner, keys):
    store = EncryptedStore(inner, keys)
    store.put("weights/w", SECRET)
    path = store.local_path("weights/w")
    assert path.exists()
    del store
    gc.collect()
    assert not path.exists()


def test_where_a_file_was_nothing_is_once_it_is_discarded_and_never_another_one(store):
    """Whoever still has the path, a lane that was told it a moment ago, must not read what is something else."""
    store.put("executables/a", b"a" * 100)
    was = store.local_path("executables/a")
    for other in "bcdefgh":
        store.discard("executables/a")
        store.put(f"executables/{other}", other.encode() * 100)
        assert store.local_path(f"executables/{other}").read_bytes() == other.encode() * 100
        assert not was.exists()
        again = store.local_path("executables/a")
        assert again != was
        assert again.read_bytes() == b"a" * 100
        was = again


class Interrupted(LocalStore):
    """Does something else while a local file that it gave is not opened yet, as often as it is told to."""

    def __init__(self, root):
        super().__init__(root)
        self.meanwhile = []

    def local_path(self, path):
        old = super().local_path(path)
        if not self.meanwhile:
            return old
        kept = self.root.with_name("kept")  # what was there, whose content is being read
        kept.write_bytes(old.read_bytes())
        self.meanwhile.pop()()
        return kept


def test_a_local_file_of_what_is_replaced_while_it_is_decrypted_is_the_new_one(tmp_path, keys):
    inner = Interrupted(tmp_path / "store")
    store = EncryptedStore(inner, keys)
    store.put("weights/w", b"old")
    before = files_in_memory()
    inner.meanwhile.append(lambda: store.put("weights/w", b"new"))
    assert store.local_path("weights/w").read_bytes() == b"new"
    assert store.local_path("weights/w").read_bytes() == b"new"
    assert len(files_in_memory() - before) == 1


def test_what_is_replaced_all_the_time_is_not_waited_for_for_ever(tmp_path, keys):
    inner = Interrupted(tmp_path / "store")
    store = EncryptedStore(inner, keys)
    store.put("weights/w", b"old")
    before = files_in_memory()
    inner.meanwhile += [lambda: store.put("weights/w", b"new")] * 100
    with pytest.raises(StoreUnavailable, match="'weights/w' is replaced again and again"):
        store.local_path("weights/w")
    assert not files_in_memory() - before


@pytest.mark.parametrize(("error", "raised"), [(FileNotFoundError, NotStored), (PermissionError, StoreUnavailable)])
def test_what_is_removed_before_it_is_opened_is_not_stored(tmp_path, keys, error, raised):
    """A sweep, or somebody who sets it aside, was faster."""

    class Closed(LocalStore):
        def local_path(self, path):
            file = super().local_path(path)
            file.unlink()
            if error is PermissionError:
                file.mkdir()  # the superuser may open every file
            return file

    store = EncryptedStore(Closed(tmp_path / "store"), keys)
    store.put("executables/e", SECRET)
    with pytest.raises(raised):
        store.local_path("executables/e")


_MANY = """
import resource, sys
from pathlib import Path
from cache.data_keys import DataKeys, FileKey
from cache.encrypted_store import EncryptedStore
from cache.local_store import LocalStore
store = EncryptedStore(LocalStore(Path(sys.argv[1])), DataKeys([FileKey(bytes(32))]))
for index in range(200):
    store.put(f"executables/{index}", b"x%d" % index)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [store.local_path(f"executables/{index}") for index in range(200)]
print(all(file.read_bytes() == b"x%d" % index for index, file in enumerate(files)))
"""


def test_more_files_can_be_held_than_the_system_allows_at_first(tmp_path):
    command = [sys.executable, "-c", _MANY, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True"]


def test_threads_that_ask_at_once_get_one_file(store):
    store.put("weights/w", LARGE)
    before = files_in_memory()
    together = threading.Barrier(8)
    found = []

    def ask():
        together.wait(30)
        found.append(store.local_path("weights/w"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert found[0].read_bytes() == LARGE
    assert len(files_in_memory() - before) == 1


def test_a_system_without_files_in_memory_is_told(store, monkeypatch):
    store.put("weights/w", SECRET)

    def refuse(name, flags):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StoreUnavailable, match="'weights/w' cannot be put into a file in memory: Function not"):
        store.local_path("weights/w")
    assert store.get("weights/w") == SECRET
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(StoreUnavailable, match="the system has none"):
        store.local_path("weights/w")


# The setting


def test_a_store_is_opened_with_its_key_below_the_signatures(tmp_path):
    FileKey.write(tmp_path / "key")
    without = StoreSettings(store=str(tmp_path / "store"), allow_unsigned=True)
    settings = replace(without, encryption_key=str(tmp_path / "key"))
    store = open_store(settings)
    store.put("weights/w", SECRET)
    assert is_envelope(store.bottom.get("weights/w"))
    assert open_store(settings).get("weights/w") == SECRET
    with pytest.raises(StoreUnavailable, match="give the key as encryption_key"):
        open_store(without).get("weights/w")


def test_a_key_file_that_is_missing_is_a_wrong_setting(tmp_path):
    with pytest.raises(ValueError, match=r"encryption_key .*/none: it cannot be read"):
        open_store(StoreSettings(store=str(tmp_path), allow_unsigned=True, encryption_key=str(tmp_path / "none")))


def identity_of(path):
    with WeightsFile(path) as file:
        return file.identity
