"""A folder as a store: the contract, and what only a folder has: modes, remains, locks, a disk that is full."""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import local_store
from cache.errors import NotStored, StoreUnavailable
from cache.local_store import UNFINISHED_S_MAX, LocalStore
from cache.opening import raw_store
from tests.cache.store_contract import StoreContract, end, wait_for
from tests.cache.store_place import Place, start

NOBODY = 65534


class TestContract(StoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return Place(folder=str(tmp_path / "store"))


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def files_of(store):
    """Every file in the folder, those that no reader is shown too."""
    files = (str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())
    return sorted(file for file in files if file != ".lock")


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077], ids=oct)
@pytest.mark.parametrize(
    ("path", "mode"),
    [("weights/w", 0o444), ("executables/e", 0o444), ("jax-cache/r/k", 0o444), ("models/m/serving.json", 0o666)],
)
def test_who_may_read_an_object_the_umask_says_and_what_never_changes_nobody_may_write(
    store, tmp_path, umask, path, mode
):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    source.chmod(0o600)
    before = os.umask(umask)
    try:
        for _ in range(2):  # and who replaces an object need not be allowed to write to it
            for put in (lambda: store.put_file(path, source), lambda: store.put(path, b"x")):
                put()
                assert store.local_path(path).stat().st_mode & 0o777 == mode & ~umask
    finally:
        os.umask(before)
    assert files_of(store) == [path]


def test_a_store_that_was_never_written_is_empty_and_reading_makes_no_folder(store):
    assert store.names("models") == []
    assert list(store.entries("")) == []
    with pytest.raises(NotStored):
        store.get("a")
    assert not store.root.exists()


def test_what_lies_in_the_folder_and_is_no_object_is_not_shown(store):
    store.put("m/a", b"")
    (store.root / "m" / "not a path").mkdir()
    (store.root / "m" / "not a path" / "b").write_bytes(b"")
    (store.root / "m" / ".hidden").write_bytes(b"")
    assert store.names("m") == ["a"]
    assert [entry.path for entry in store.entries("")] == ["m/a"]


def test_an_object_below_an_object_is_not_there(store):
    store.put("file", b"")
    for read in (store.get, store.local_path, store.get_versioned):
        with pytest.raises(NotStored):
            read("file/below")
    assert store.names("file/below") == []


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


# What is no object


@pytest.fixture
def odd(store):
    """A store with what nobody stored: a pipe that nobody writes to, a socket, loops of links, and an object."""
    store.put("models/toy/serving.json", b"{}")
    folder = store.root / "executables"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    os.mkfifo(store.root / "models" / "toy" / "manifest.json")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "folder").mkdir()
    (store.root / "models" / "round").symlink_to(store.root / "models" / "round")
    with socket.socket(socket.AF_UNIX) as listening:
        before = Path.cwd()
        os.chdir(folder)  # the name of a socket has to be short
        try:
            listening.bind("socket")
        finally:
            os.chdir(before)
        yield store


ODD = [
    *(f"executables/{name}" for name in ("pipe", "socket", "zero", "loop", "folder")),
    "models/toy/manifest.json",
    "models/round/serving.json",
]


@pytest.mark.parametrize("path", ODD)
def test_what_is_no_file_is_no_object_and_nobody_waits_for_it(odd, path):
    reads = (odd.get, odd.get_versioned, odd.local_path, odd.touch, lambda path: odd.read_into(path, io.BytesIO()))
    for read in reads:
        with pytest.raises(NotStored):
            read(path)
    assert odd.delete_if(path, "0-0") is False


def test_the_names_and_entries_of_a_store_are_told_whatever_else_lies_there(odd):
    assert [entry.path for entry in odd.entries("")] == ["models/toy/serving.json"]
    assert list(odd.entries("executables")) == []
    assert odd.names("models/round") == []


@pytest.mark.parametrize("name", ["pipe", "socket", "zero", "loop"])
def test_what_is_no_file_can_be_replaced_and_removed(odd, name):
    path = f"executables/{name}"
    odd.delete(path)
    assert name not in odd.names("executables")
    assert odd.put_if(path, b"x", None) is not None
    assert odd.get(path) == b"x"


def test_a_folder_of_a_store_that_is_a_loop_of_links_is_not_an_empty_one(store):
    """Else all that its documents name could be removed."""
    store.put("weights/w", b"x")
    (store.root / "models").symlink_to(store.root / "models")
    for call in (lambda: store.names("models"), lambda: store.get("models/m/serving.json")):
        with pytest.raises(StoreUnavailable, match="symbolic links"):
            call()


@pytest.fixture
def everybodys():
    """A store that every user of the machine may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = LocalStore(Path(folder))
        store.put("weights/w", b"x")
        yield store


@pytest.mark.parametrize("name", ["lost+found", "notes"])
def test_a_folder_that_is_not_ours_and_closed_to_us_disturbs_nobody(everybodys, name):
    (everybodys.root / name).mkdir(mode=0)
    with unprivileged():
        assert [entry.path for entry in everybodys.entries("")] == ["weights/w"]


def test_a_folder_that_is_ours_and_closed_to_us_is_not_an_empty_one(everybodys):
    (everybodys.root / "models").mkdir(mode=0)
    with unprivileged(), pytest.raises(StoreUnavailable, match="Permission denied"):
        list(everybodys.entries(""))


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
        lambda store: store.delete("shut/a"),
        lambda store: list(store.entries("shut")),
        lambda store: store.get_versioned("shut/a"),
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


def hidden(store):
    return [path.name for path in store.root.rglob(".unfinished-*")]


def test_a_process_killed_in_the_middle_of_a_put_leaves_nothing_that_is_shown(store, tmp_path):
    store.put("weights/w", b"old")
    source = tmp_path / "endless"
    os.mkfifo(source)
    writer = start(Place(folder=str(store.root)), "put_file", "weights/w", source)
    try:
        with source.open("wb", buffering=0) as stream:
            stream.write(bytes(3 << 20))  # a copy of 1 MiB at a time: at least one is written, and more is waited for
            wait_for(lambda: any(file.stat().st_size for file in store.root.rglob(".unfinished-*")))
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(30)
    finally:
        end([writer])
    assert hidden(store), "it was not in the middle"
    assert store.get("weights/w") == b"old"
    assert store.names("weights") == ["w"]
    assert [entry.path for entry in store.entries("")] == ["weights/w"]
    store.put("weights/w", b"new")
    assert store.get("weights/w") == b"new"


@pytest.fixture
def comparing(store):
    """A process that is about to compare and write."""
    store.put_if("leases/a", b"old", None)
    process = start(Place(folder=str(store.root)), "compare", "leases/a")
    assert process.hear() == "held"
    yield process
    process.kill()
    end([process])


def test_the_lock_of_a_process_that_was_killed_is_free(store, comparing):
    generation = store.get_versioned("leases/a")[1]
    os.kill(comparing.pid, signal.SIGKILL)
    assert store.put_if("leases/a", b"new", generation) is not None
    assert store.delete_if("leases/a", store.get_versioned("leases/a")[1])


def test_while_a_process_compares_nothing_changes_and_everything_is_read(store, comparing, monkeypatch, tmp_path):
    monkeypatch.setattr(local_store, "COMPARE_S_MAX", 0.05)
    source = tmp_path / "source"
    source.write_bytes(b"x")
    generation = store.get_versioned("leases/a")[1]
    changes = (
        lambda: store.put("leases/a", b"x"),
        lambda: store.put_file("leases/a", source),
        lambda: store.put_if("leases/a", b"x", generation),
        lambda: store.put_if("leases/b", b"x", None),
        lambda: store.touch("leases/a"),
        lambda: store.delete("leases/a"),
        lambda: store.delete_if("leases/a", generation),
    )
    for change in changes:
        with pytest.raises(StoreUnavailable, match=r"'leases/.': another process holds the lock of this store"):
            change()
    assert store.get_versioned("leases/a") == (b"old", generation)
    assert files_of(store) == ["leases/a"]
    store.delete("leases/never-there")


def test_what_is_written_at_the_same_time_has_another_generation(store, monkeypatch):
    """Clocks stand still, and file systems keep times by the second."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    really = os.utime
    monkeypatch.setattr(os, "utime", lambda file, ns: really(file, ns=(ns[0], ns[1] // 10**9 * 10**9)))
    generations = []
    for data in (b"a", b"b", b"a", b"b"):
        store.put("leases/a", data)
        generations.append(store.get_versioned("leases/a")[1])
    store.touch("leases/a")
    generations.append(store.get_versioned("leases/a")[1])
    assert len(set(generations)) == len(generations)


def test_an_object_of_another_user_can_be_touched_by_who_may_replace_it(store, monkeypatch):
    store.put("executables/k", b"x")
    before = store.get_versioned("executables/k")[1]
    mine = store._file("executables/k").stat().st_ino
    really = os.utime

    def utime(file, ns):
        if file.stat().st_ino == mine:
            raise PermissionError
        really(file, ns=ns)

    monkeypatch.setattr(os, "utime", utime)
    store.touch("executables/k")
    assert store.get("executables/k") == b"x"
    assert store.get_versioned("executables/k")[1] != before


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
    def interrupted(stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._put("a", interrupted)
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


@pytest.mark.parametrize("uri", ["", "s3://bucket", "http://x/y", "file://", "file://srv/store", "file:store"])
def test_what_is_no_store_is_refused_with_what_would_be(uri):
    with pytest.raises(ValueError, match="file:///folder"):
        raw_store(uri)


def test_it_shows_its_folder(store):
    assert repr(store) == f"LocalStore({str(store.root)!r})"
