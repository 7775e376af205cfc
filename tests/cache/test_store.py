"""A reader of a store sees a whole object or none; an error says whether there is nothing or it cannot be read."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.errors import NotStored, StoreUnavailable
from cache.local_store import UNFINISHED_S_MAX, LocalStore
from cache.opening import raw_store

NOBODY = 65534
WAIT_S_MAX = 30.0

names = st.text("abzAZ09._-", min_size=1, max_size=8).filter(lambda name: name[0] not in "._-")
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def files_of(store):
    """Every file in the folder, those that no reader is shown too."""
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


def test_what_was_put_is_there(store):
    store.put("models/a/1/manifest.json", b"one")
    assert store.get("models/a/1/manifest.json") == b"one"
    assert store.local_path("models/a/1/manifest.json").read_bytes() == b"one"


def test_a_put_replaces_what_was_there(store):
    store.put("a", b"a longer one")
    store.put("a", b"two")
    assert store.get("a") == b"two"
    assert files_of(store) == ["a"]


def test_an_empty_object_is_an_object(store):
    store.put("a", b"")
    assert store.get("a") == b""
    assert store.names("a") == []


@settings(max_examples=40)
@given(st.dictionaries(paths, st.binary(max_size=20), max_size=6))
def test_any_set_of_objects_that_do_not_lie_below_each_other_is_kept(tmp_path_factory, objects):
    objects = {
        path: data for path, data in objects.items() if not any(other.startswith(f"{path}/") for other in objects)
    }
    store = LocalStore(tmp_path_factory.mktemp("store"))
    for path, data in objects.items():
        store.put(f"x/{path}", data)
    assert store.names("x") == sorted({path.partition("/")[0] for path in objects})
    assert {path: store.get(f"x/{path}") for path in objects} == objects


def test_a_file_is_stored_without_its_name_or_its_mode(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 10_000)
    source.chmod(0o600)
    store.put_file("weights/w", source)
    assert store.get("weights/w") == source.read_bytes()
    assert store.local_path("weights/w").stat().st_mode & 0o777 == 0o644
    assert files_of(store) == ["weights/w"]


def test_a_file_that_does_not_exist_leaves_nothing(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.put_file("weights/w", tmp_path / "missing")
    assert files_of(store) == []


@pytest.mark.parametrize("path", ["a", "a/b", "file/below"])
def test_where_nothing_is_stored_every_method_says_so(store, path):
    store.put("file", b"")
    assert store.names(path) == []
    for read in (store.get, store.local_path):
        with pytest.raises(NotStored, match=f"nothing is stored under '{path}'") as caught:
            read(path)
        assert caught.value.path == path


def test_a_folder_is_no_object(store):
    store.put("a/b", b"")
    for read in (store.get, store.local_path):
        with pytest.raises(NotStored):
            read("a")


def test_a_store_that_was_never_written_is_empty(store):
    assert store.names("models") == []
    assert not store.root.exists()


def test_only_what_lies_directly_in_the_folder_is_named_in_order(store):
    for path in ("m/b/2", "m/b/10", "m/a-b/c/d", "m/a/c", "m/a.json", "mm/x", "n"):
        store.put(path, b"")
    assert store.names("m") == ["a", "a-b", "a.json", "b"]
    assert store.names("m/b") == ["10", "2"]
    assert store.names("n") == []
    (store.root / "m" / "not a path").mkdir()
    (store.root / "m" / ".hidden").write_bytes(b"")
    assert store.names("m") == ["a", "a-b", "a.json", "b"]


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "a/./b",
        "/a",
        "/",
        "a/",
        "a//b",
        ".hidden",
        "a/.hidden",
        "a/.unfinished-x",
        "-a",
        "a b",
        "a\n",
        "a\0b",
        "a\\b",
        "ä",
        "a/\u0661",
        "~",
        "C:a",
    ],
)
def test_what_is_no_path_is_refused_by_every_method(store, tmp_path, path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    for call in (
        store.get,
        store.local_path,
        store.names,
        lambda path: store.put(path, b"x"),
        lambda path: store.put_file(path, source),
    ):
        with pytest.raises(ValueError, match="is not a store path: use names of letters"):
            call(path)
    assert list(tmp_path.iterdir()) == [source]


@given(st.text(max_size=20))
def test_no_path_leads_out_of_the_folder(path):
    store = LocalStore(Path("/store"))
    try:
        file = store._file(path)
    except ValueError:
        return
    assert Path(os.path.normpath(file)).is_relative_to("/store")
    assert os.path.normpath(file) == str(file)


@contextmanager
def unprivileged():
    """Without root's right to read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def closed(store):
    """A store with a folder that only its owner may enter; for root, somebody else's."""
    store.put("shut/a", b"x")
    (store.root / "shut").chmod(0)
    with unprivileged():
        yield store
    (store.root / "shut").chmod(0o755)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("shut/a"),
        lambda store: store.local_path("shut/a"),
        lambda store: store.names("shut"),
        lambda store: store.put("shut/b", b""),
        lambda store: store.put("shut/below/b", b""),
    ],
)
def test_what_may_not_be_read_or_written_is_unavailable_not_absent(closed, call):
    with pytest.raises(StoreUnavailable, match=r"'shut[^']*': Permission denied"):
        call(closed)


@pytest.mark.parametrize("path", ["file/below", "folder", "x" * 300])
def test_what_cannot_be_written_is_unavailable_and_leaves_nothing(store, path):
    store.put("file", b"old")
    store.put("folder/a", b"old")
    with pytest.raises(StoreUnavailable, match=path):
        store.put(path, b"new")
    assert files_of(store) == ["file", "folder/a"]
    assert store.get("file") == b"old"


def test_a_name_too_long_to_read_is_unavailable(store):
    store.put("a", b"")
    with pytest.raises(StoreUnavailable, match="File name too long"):
        store.get("x" * 300)


def test_a_put_that_runs_out_of_space_leaves_the_old_object_and_no_remains(store, tmp_path):
    store.put("a", b"old")
    source = tmp_path / "source"
    source.write_bytes(bytes(1 << 20))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="File too large"):
            store.put("a", bytes(1 << 20))
        with pytest.raises(StoreUnavailable, match="File too large"):
            store.put_file("b", source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.get("a") == b"old"
    assert files_of(store) == ["a"]


WRITE = """
import sys
from cache.local_store import LocalStore
store, letter = LocalStore(__import__("pathlib").Path(sys.argv[1])), sys.argv[2].encode()
for turn in range(int(sys.argv[3])):
    size = 1 + 7919 * turn % 200_000
    store.put("shared", letter * size)
    if turn == 0:
        print("begun", flush=True)
"""


def writer(store, letter, turns):
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, str(store.root), letter, str(turns)], stdout=subprocess.PIPE, text=True
    )


def test_no_reader_sees_a_torn_object_while_four_processes_write_it(store):
    writers = [writer(store, letter, 60) for letter in "abcd"]
    seen: set[bytes] = set()
    try:
        deadline = time.monotonic() + WAIT_S_MAX
        while any(process.poll() is None for process in writers):
            assert time.monotonic() < deadline
            try:
                data = store.get("shared")
            except NotStored:
                assert not seen, "it was there and is gone"
                continue
            assert len(set(data)) == 1, "two writers' bytes in one object"
            seen.add(hashlib.sha256(data).digest())
    finally:
        for process in writers:
            process.kill()
            process.communicate()
    assert [process.returncode for process in writers] == [0] * 4
    assert len(seen) > 4, "the reader never overlapped with the writers"
    assert files_of(store) == ["shared"]


def test_a_writer_killed_in_a_put_leaves_the_old_object_or_the_new_one_and_nothing_else_visible(store):
    for _ in range(5):
        process = writer(store, "a", 1_000_000)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            wait_for(lambda: hidden(store))
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert set(store.get("shared")) == set(b"a")
        store.put("below/b", b"")
        assert store.names("below") == ["b"]
    for name in hidden(store):
        with pytest.raises(ValueError, match="is not a store path"):
            store.get(name)


def hidden(store):
    return [path.name for path in store.root.iterdir() if path.name.startswith(".unfinished-")]


def test_remains_of_a_killed_put_are_not_named_and_go_at_a_put_a_day_later(store):
    store.put("a/b", b"")
    remains = store.root / "a" / ".unfinished-xyz"
    remains.write_bytes(b"half")
    assert store.names("a") == ["b"]
    store.put("a/c", b"")
    assert remains.exists(), "it may still be written"
    long_ago_s = time.time() - UNFINISHED_S_MAX - 60
    os.utime(remains, (long_ago_s, long_ago_s))
    store.put("other/b", b"")
    assert remains.exists()
    store.put("a/c", b"")
    assert files_of(store) == ["a/b", "a/c", "other/b"]


def test_a_put_syncs_the_object_and_every_folder_on_the_way_to_it(tmp_path, monkeypatch):
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = LocalStore(tmp_path / "new" / "store")
    store.put("m/a/1", b"x")
    content, *folders = synced
    assert content.startswith("new/store/m/a/.unfinished-")
    assert sorted(folders) == [".", "new", "new/store", "new/store/m", "new/store/m/a"]
    del synced[:]
    (store.root / "m" / "b").mkdir()  # as a put does that is killed then
    store.put("m/b/1", b"x")
    assert sorted(synced[1:]) == ["new/store", "new/store/m", "new/store/m/b"]


def test_a_put_that_is_interrupted_leaves_nothing(store):
    def interrupted():
        with store._writing("a") as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files_of(store) == []


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("/srv/store", "/srv/store"),
        ("file:///srv/store", "/srv/store"),
        ("file:///srv/my%20store", "/srv/my store"),
        ("/srv/my%20store", "/srv/my%20store"),
    ],
)
def test_a_store_is_opened_by_folder_or_file_uri(uri, root):
    store = raw_store(uri)
    assert isinstance(store, LocalStore)
    assert store.root == Path(root)


def test_a_relative_folder_means_the_one_of_when_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = raw_store("here")
    monkeypatch.chdir("/")
    store.put("a", b"")
    assert (tmp_path / "here" / "a").exists()


@pytest.mark.parametrize("uri", ["", "gs://bucket", "http://x/y", "file://", "file://srv/store", "file:store"])
def test_what_is_no_store_is_refused_with_what_would_be(uri):
    with pytest.raises(ValueError, match="file:///folder"):
        raw_store(uri)


def test_it_shows_its_folder(store):
    assert repr(store) == f"LocalStore({str(store.root)!r})"


def wait_for(holds):
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline
