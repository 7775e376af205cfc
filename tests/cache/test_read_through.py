"""A folder before a far store: one download of what does not change, the last answer while nobody answers."""

from __future__ import annotations

import errno
import fcntl
import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gameday.fault_proxy import FaultProxy
from cache import local_copies
from cache.errors import NotStored, StoreUnavailable
from cache.far_store import AWAY_S
from cache.fetching import fetch_all
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.read_through import ReadThroughStore
from cache.settings import StoreSettings
from tests.cache.gcs_server import GcsServer
from tests.cache.store_contract import StoreContract, end, read, wait_for
from tests.cache.store_place import ROOT, Place, start

MIB = 1 << 20


class TestOverFolder(StoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return Place(folder=str(tmp_path / "store"), copies=str(tmp_path / "copies"))


class TestOverBucket(StoreContract):
    # The server does not compare: see test_gcs_store for what it is asked.
    test_a_conditional_delete_leaves_what_was_not_seen = None  # type: ignore[assignment]

    @pytest.fixture
    def place(self, gcs, bucket, tmp_path):
        return Place(url=gcs.url, bucket=bucket, copies=str(tmp_path / "copies"))


class Far(LocalStore):
    """A store that counts what it is asked, can be away, and can be held up.

    Attributes:
        away: Whether it cannot be reached.
        asked: How often, by method and path.
        gate: While this is clear, `read_into` waits in the middle.
        begun: Set when it does.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.away = False
        self.asked: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def _ask(self, method, path):
        self.asked[f"{method} {path}"] += 1
        if self.away:
            raise StoreUnavailable(f"{path!r}: the line is dead")

    def get(self, path, *, bytes_max=None):
        self._ask("get", path)
        return super().get(path, bytes_max=bytes_max)

    def read_into(self, path, stream):
        self._ask("read_into", path)
        data = super().get(path)
        stream.write(data[: len(data) // 2])
        self.begun.set()
        assert self.gate.wait(30)
        stream.write(data[len(data) // 2 :])

    def names(self, folder):
        self._ask("names", folder)
        return super().names(folder)

    def put(self, path, data):
        self._ask("put", path)
        super().put(path, data)

    def delete(self, path):
        self._ask("delete", path)
        super().delete(path)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def far(tmp_path):
    return Far(tmp_path / "far")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(far, clock, tmp_path):
    return ReadThroughStore(far, tmp_path / "near", 1 << 30, clock=clock)


def copies_of(store):
    """Paths of the whole copies that lie in the folder."""
    top = store.folder / "objects"
    return sorted(
        file.relative_to(top).as_posix() for file in top.rglob("*") if file.is_file() and not file.name.startswith(".")
    )


def used(store, *paths):
    """Make these the copies that were used the longest ago, in this order."""
    for age, path in enumerate(reversed(paths)):
        file = store.folder / "objects" / path
        os.utime(file, (1000.0 - age, file.stat().st_mtime))


# What does not change


@pytest.mark.parametrize("path", ["executables/k", "programs/p", "weights/w", "jax-cache/jit_f-123-cache"])
def test_what_does_not_change_comes_from_far_once(store, far, path):
    far.put(path, b"content")
    for _ in range(3):
        assert store.get(path) == b"content"
        assert store.local_path(path).read_bytes() == b"content"
        assert store.get(path, bytes_max=3) == b"con"
    assert far.asked == {f"put {path}": 1, f"read_into {path}": 1}


def test_the_start_of_an_object_is_asked_for_and_not_kept(store, far):
    far.put("executables/k", b"content")
    assert store.get("executables/k", bytes_max=3) == b"con"
    assert copies_of(store) == []
    assert far.asked["read_into executables/k"] == 0


def test_what_is_written_goes_far_first_and_is_kept(store, far, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    store.put("executables/k", b"content")
    store.put_file("weights/w", source)
    store.put("leases/l", b"content")
    assert [far.get(path) for path in ("executables/k", "weights/w", "leases/l")] == [
        b"content",
        b"weights",
        b"content",
    ]
    assert copies_of(store) == ["executables/k", "weights/w"]
    assert store.get("executables/k") == b"content"
    assert store.local_path("weights/w").read_bytes() == b"weights"
    assert not [asked for asked in far.asked if asked.startswith("read_into")]


def test_what_cannot_be_written_far_is_not_kept(store, far):
    far.away = True
    with pytest.raises(StoreUnavailable):
        store.put("executables/k", b"content")
    assert copies_of(store) == []


def test_what_is_discarded_comes_from_far_again(store, far):
    far.put("executables/k", b"content")
    kept = store.local_path("executables/k")
    kept.write_bytes(b"damaged")
    assert store.get("executables/k") == b"damaged"
    store.discard("executables/k")
    assert store.get("executables/k") == b"content"
    assert store.local_path("executables/k").read_bytes() == b"content"


def test_what_is_deleted_has_no_copy(store, far):
    store.put("executables/k", b"content")
    store.delete("executables/k")
    with pytest.raises(NotStored):
        store.get("executables/k")


@pytest.mark.parametrize("call", ["get", "local_path"])
def test_of_many_threads_that_want_an_object_one_fetches_it(store, far, call):
    far.put("executables/k", b"content" * 1000)
    far.gate.clear()
    with ThreadPoolExecutor(16) as pool:
        wanted = [pool.submit(getattr(store, call), "executables/k") for _ in range(16)]
        assert far.begun.wait(30)
        assert not [one for one in wanted if one.done()]
        assert copies_of(store) == [], "half an object has its name"
        far.gate.set()
        for one in wanted:
            found = one.result(30)
            assert (found if call == "get" else found.read_bytes()) == b"content" * 1000
    assert far.asked["read_into executables/k"] == 1


def test_of_many_threads_that_want_what_is_not_there_all_are_told(store, far):
    with ThreadPoolExecutor(8) as pool:
        wanted = [pool.submit(store.local_path, "executables/none") for _ in range(32)]
        for one in wanted:
            with pytest.raises(NotStored):
                one.result(30)
    far.put("executables/none", b"there")
    assert store.get("executables/none") == b"there"


def test_a_failed_download_leaves_no_copy_and_the_next_one_succeeds(store, far):
    far.put("executables/k", b"content")
    far.away = True
    for call in (store.get, store.local_path):
        with pytest.raises(StoreUnavailable, match="the line is dead"):
            call("executables/k")
    far.away = False
    assert [file for file in (store.folder / "objects").rglob("*") if file.is_file()] == []
    assert store.get("executables/k") == b"content"


def test_what_a_killed_download_left_is_no_part_of_the_next_one(store, far):
    far.put("executables/k", b"content")
    unfinished = store.folder / "objects" / "executables" / ".unfinished-k"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"half of something longer")
    assert store.local_path("executables/k").read_bytes() == b"content"
    assert not unfinished.exists()


def test_what_is_held_and_let_go_again_and_again_takes_no_more_descriptors(store, far):
    far.put("executables/k", b"content")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(200):
        store.local_path("executables/k")
        store.discard("executables/k")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 100  # what else is in this process opens some too


def test_of_processes_that_want_an_object_one_fetches_it(gcs, bucket, tmp_path):
    with FaultProxy(gcs) as proxy:
        place = Place(url=gcs.url, bucket=bucket)
        content = os.urandom(MIB)
        place.open().put("weights/w", content)
        over = threading.Event()

        def slow(call):
            answer = call.ask()
            call.begin(answer)
            call.send(answer.body[:1000])
            assert over.wait(60)
            call.send(answer.body[1000:])

        proxy.script.extend([slow])
        near = Place(url=proxy.url, bucket=bucket, copies=str(tmp_path / "copies"))
        children = [start(near, "local_path", "weights/w") for _ in range(4)]
        try:
            assert [child.hear() for child in children] == ["begun"] * 4
            wait_for(lambda: proxy.seen)
            over.set()
            assert {Path(child.hear()).read_bytes() for child in children} == {content}
        finally:
            over.set()
            end(children)
        assert len([seen for seen in proxy.seen if seen.method == "GET"]) == 1


def test_a_process_killed_in_the_middle_of_a_download_leaves_the_turn_to_others(gcs, bucket, tmp_path):
    with FaultProxy(gcs) as proxy:
        content = os.urandom(MIB)
        Place(url=gcs.url, bucket=bucket).open().put("weights/w", content)
        begun, over = threading.Event(), threading.Event()

        def stalled(call):
            answer = call.ask()
            call.begin(answer)
            call.send(answer.body[: MIB // 2])
            begun.set()
            over.wait(60)

        proxy.script.extend([stalled])
        near = Place(url=proxy.url, bucket=bucket, copies=str(tmp_path / "copies"))
        child = start(near, "local_path", "weights/w")
        try:
            assert begun.wait(60)
            wait_for(lambda: any(file.stat().st_size for file in (tmp_path / "copies").rglob(".unfinished-*")))
            os.kill(child.pid, signal.SIGKILL)
            child.wait(30)
        finally:
            over.set()
            end([child])
        store = near.open()
        assert copies_of(store) == []
        assert store.local_path("weights/w").read_bytes() == content
        assert [file.name for file in (tmp_path / "copies" / "objects").rglob("*") if file.is_file()] == ["w"]


def test_a_download_that_another_process_keeps_up_is_given_up_and_read_past(store, far, monkeypatch, caplog):
    far.put("executables/k", b"content")
    unfinished = store.folder / "objects" / "executables" / ".unfinished-k"
    unfinished.parent.mkdir(parents=True)
    monkeypatch.setattr(local_copies, "STANDSTILL_S_MAX", 0.05)
    with unfinished.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert store.local_path("executables/k").read_bytes() == b"content"
        assert "another process does not finish .unfinished-k" in caplog.records[0].reason
        assert store.get("executables/k") == b"content"
    assert store.local_path("executables/k").read_bytes() == b"content"


# Room


@pytest.fixture
def small(far, tmp_path):
    """Room for ten objects of a tenth of a mebibyte; less is left alone."""
    return ReadThroughStore(far, tmp_path / "near", MIB)


def fill(far, *names):
    for name in names:
        far.put(f"executables/{name}", name.encode() * (MIB // 10 // len(name)))


def test_what_was_used_the_longest_ago_makes_room(small, far):
    fill(far, *"abcdefghijk")
    for name in "abcdefghij":
        small.get(f"executables/{name}")
    used(small, *(f"executables/{name}" for name in "dbacefghij"))
    small.get("executables/a")
    small.local_path("executables/c")
    small.get("executables/b", bytes_max=1)
    small.get("executables/k")
    assert copies_of(small) == [f"executables/{name}" for name in "abcfghijk"]


def test_there_is_never_more_than_was_allowed_but_for_one_object(small, far):
    names = [f"n{index}" for index in range(60)]
    fill(far, *names)
    for name in names:
        small.get(f"executables/{name}")
        there = sum(file.stat().st_size for file in (small.folder / "objects").rglob("*") if file.is_file())
        assert there <= MIB
    assert len(copies_of(small)) >= 8, "too much went"


def test_an_object_larger_than_all_the_room_is_given_all_the_same(far, tmp_path):
    store = ReadThroughStore(far, tmp_path / "near", 1000)
    far.put("weights/w", bytes(5000))
    fill(far, "a")
    file = store.local_path("weights/w")
    assert store.get("executables/a") == far.get("executables/a")
    assert file.read_bytes() == bytes(5000), "it is held"
    assert store.local_path("executables/a").read_bytes() == far.get("executables/a")


def test_what_is_held_stays_whoever_needs_room_and_goes_when_its_holder_does(far, tmp_path):
    fill(far, *"abcdefghijklmnopqrstuvwxyz")
    small = ReadThroughStore(far, tmp_path / "near", MIB)
    held = {name: small.local_path(f"executables/{name}") for name in "abcde"}
    other = ReadThroughStore(far, small.folder, MIB)
    for name in "fghijklmnopqrstuvwxyz":
        other.get(f"executables/{name}")
        small.get(f"executables/{name}")
    for name, file in held.items():
        assert file.read_bytes() == far.get(f"executables/{name}")
    used(small, *(f"executables/{name}" for name in "abcde"))
    del small
    gc.collect()
    for name in "fghijklmnopqrstuvwxyz":
        other.get(f"executables/{name}")
    assert not [file for file in held.values() if file.exists()]


def test_what_another_process_holds_stays_until_that_process_is_killed(small, far):
    fill(far, *"abcdefghijklmnopqrstuvwxyz")
    place = Place(folder=str(far.root), copies=str(small.folder), bytes_max=MIB)
    child = start(place, "local_path", "executables/a")
    try:
        assert child.hear() == "begun"
        file = Path(child.hear())
        assert file.read_bytes() == far.get("executables/a")
        used(small, "executables/a")
        for name in "bcdefghijklmnopqrstuvwxyz":
            small.get(f"executables/{name}")
        assert file.exists()
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
    finally:
        child.kill()
        end([child])
    used(small, "executables/a")
    for name in "bcdefghijklmnopqrstuvwxyz":
        small.get(f"executables/{name}")
    assert not file.exists()


def test_threads_that_fetch_more_than_fits_get_files_that_stay(small, far):
    names = [f"n{index:02}" for index in range(40)]
    fill(far, *names)
    fetched = fetch_all(small, [f"executables/{name}" for name in names])
    assert {path: read(file) for path, file in fetched.items()} == {
        f"executables/{name}": far.get(f"executables/{name}") for name in names
    }


def test_use_changes_nothing_by_which_others_see_that_a_file_was_changed(store, far):
    far.put("weights/w", b"content")
    before = store.local_path("weights/w").stat()
    os.utime(store.local_path("weights/w"), ns=(0, before.st_mtime_ns))
    after = store.local_path("weights/w").stat()
    assert after.st_atime_ns > before.st_mtime_ns - 10**9, "its use was not noted"
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def test_remains_of_killed_processes_go_as_soon_as_room_is_made(small, far):
    fill(far, *"abcdefghij")
    remains = [small.folder / "objects" / folder / ".unfinished-x" for folder in ("executables", "weights")]
    for file in remains:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(MIB))
    for name in "abcdefghij":
        small.get(f"executables/{name}")
    assert [file for file in remains if file.exists()] == []
    assert len(copies_of(small)) >= 9, "what was removed counts all the same"


def test_copies_in_the_making_count_and_stay(small, far):
    fill(far, *"abcdefghij")
    making = small.folder / "objects" / "weights" / ".unfinished-x"
    making.parent.mkdir(parents=True)
    making.write_bytes(bytes(MIB // 2))
    with making.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        for name in "abcdefghij":
            small.get(f"executables/{name}")
        assert making.exists()
    assert len(copies_of(small)) <= 5
    assert "executables/j" in copies_of(small)


def test_more_files_can_be_held_than_the_system_allows_at_first(far, tmp_path):
    code = f"""
import resource
from pathlib import Path
from tests.cache.test_read_through import Far
from cache.read_through import ReadThroughStore
store = ReadThroughStore(Far(Path({str(far.root)!r})), Path({str(tmp_path / "near")!r}), 1 << 30)
for index in range(200):
    store.put(f"executables/{{index}}", b"x")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [store.local_path(f"executables/{{index}}") for index in range(200)]
print(len(files), Path("/dev/null").read_bytes())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["200", "b''"]


# What changes


def test_documents_are_asked_for_each_time(store, far):
    for content in (b"one", b"two", b"three"):
        far.put("models/m/serving.json", content)
        assert store.get("models/m/serving.json") == content
        assert store.local_path("models/m/serving.json").read_bytes() == content
        assert store.get("models/m/serving.json", bytes_max=2) == content[:2]
    far.put("models/n/serving.json", b"")
    assert store.names("models") == ["m", "n"]


def test_while_the_far_store_is_away_documents_are_what_they_were_last(store, far, clock, caplog):
    far.put("models/m/serving.json", b"one")
    assert store.get("models/m/serving.json") == b"one"
    assert store.names("models") == ["m"]
    far.put("models/m/serving.json", b"two")
    far.put("models/n/serving.json", b"new")
    far.away = True
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            clock.now_s += AWAY_S + 1
            assert store.get("models/m/serving.json") == b"one"
            assert store.get("models/m/serving.json", bytes_max=1) == b"o"
            assert store.local_path("models/m/serving.json").read_bytes() == b"one"
            assert store.names("models") == ["m"]
        far.away = False
        clock.now_s += AWAY_S + 1
        assert store.get("models/m/serving.json") == b"two"
        assert store.names("models") == ["m", "n"]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.message, record.reason) for record in warnings] == [
        ("store is away: documents are those that it had last", "'models/m/serving.json': the line is dead")
    ]
    assert caplog.records[-1].message == "store is back"


def test_another_process_starts_from_what_was_read_here(store, far, clock):
    far.put("models/m/serving.json", b"one")
    far.put("distrusted/" + "a" * 64, b"{}")
    far.put("executables/k", b"content")
    store.names("models"), store.get("models/m/serving.json"), store.names("distrusted"), store.get("executables/k")
    far.away = True
    later = ReadThroughStore(far, store.folder, 1 << 30, clock=clock)
    assert later.names("models") == ["m"]
    assert later.names("distrusted") == ["a" * 64]
    assert later.get("models/m/serving.json") == b"one"
    assert later.get("executables/k") == b"content"
    assert later.local_path("executables/k").read_bytes() == b"content"


def test_what_was_never_read_is_unavailable_while_the_far_store_is_away(store, far):
    far.put("models/m/serving.json", b"one")
    far.away = True
    for call in (
        lambda: store.names("models"),
        lambda: store.get("models/m/serving.json"),
        lambda: store.local_path("models/m/serving.json"),
        lambda: store.get("leases/a"),
        lambda: store.names("leases"),
        lambda: store.get("executables/k"),
    ):
        with pytest.raises(StoreUnavailable, match="the line is dead"):
            call()


def test_a_document_that_was_removed_is_not_remembered(store, far):
    far.put("models/m/serving.json", b"one")
    store.get("models/m/serving.json")
    far.delete("models/m/serving.json")
    with pytest.raises(NotStored):
        store.get("models/m/serving.json")
    far.away = True
    with pytest.raises(StoreUnavailable):
        store.get("models/m/serving.json")


def test_what_coordinates_a_fleet_is_never_remembered(store, far):
    generation = store.put_if("leases/a", b"one", None)
    assert store.get("leases/a") == b"one"
    assert store.get_versioned("leases/a") == (b"one", generation)
    far.away = True
    with pytest.raises(StoreUnavailable):
        store.get("leases/a")


def test_documents_that_are_written_are_remembered(store, far):
    store.put("models/m/serving.json", b"one")
    first = store.put_if("models/n/serving.json", b"two", None)
    store.put_if("models/n/serving.json", b"three", first)
    assert store.put_if("models/n/serving.json", b"four", first) is None
    far.away = True
    assert store.get("models/m/serving.json") == b"one"
    assert store.get("models/n/serving.json") == b"three"


def test_a_far_store_that_is_away_is_not_asked_again_and_again(store, far, clock):
    far.put("models/m/serving.json", b"one")
    store.get("models/m/serving.json")
    far.away = True
    far.asked.clear()
    for _ in range(10):
        store.get("models/m/serving.json")
    assert far.asked == {"get models/m/serving.json": 1}
    clock.now_s += AWAY_S + 1
    store.get("models/m/serving.json")
    assert far.asked == {"get models/m/serving.json": 2}


def test_less_patience_is_had_where_there_is_another_answer_or_the_store_was_just_away(far, clock, tmp_path):
    hasty = Far(far.root)
    store = ReadThroughStore(far, tmp_path / "near", 1 << 30, hasty=hasty, clock=clock)
    far.put("models/m/serving.json", b"one")
    far.put("executables/k", b"content")
    store.get("models/m/serving.json")
    assert (far.asked["get models/m/serving.json"], hasty.asked.total()) == (1, 0)
    store.get("models/m/serving.json")
    assert (far.asked["get models/m/serving.json"], hasty.asked.total()) == (1, 1)
    hasty.away = True
    assert store.get("models/m/serving.json") == b"one"
    with pytest.raises(StoreUnavailable):
        store.get("executables/k")
    assert far.asked["read_into executables/k"] == 0
    clock.now_s += AWAY_S + 1
    assert store.get("executables/k") == b"content"
    assert far.asked["read_into executables/k"] == 1


# A folder that takes nothing


@contextmanager
def unprivileged():
    """Without root's right to write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def assert_read_past(store, far):
    """It is read from far all the same, and as a file, which is in memory."""
    assert store.get("executables/k") == b"content" * 1000
    assert store.get("models/m") == b"document" * 1000
    for path in ("executables/k", "models/m"):
        content = far.get(path)
        file = store.local_path(path)
        assert (store.folder not in file.parents, file.read_bytes(), store.local_path(path)) == (True, content, file)
    store.put("executables/new", b"new")
    assert far.get("executables/new") == b"new"


def assert_told_once(caplog, store, reason):
    """It is said once that copies are not kept, with folder and reason."""
    (record,) = caplog.records
    assert (record.message, record.levelname) == ("copies cannot be kept", "WARNING")
    assert str(store.folder) in record.reason
    assert reason in record.reason


def assert_recovers(store):
    assert store.local_path("executables/k").read_bytes() == b"content" * 1000
    assert store.local_path("models/m").read_bytes() == b"document" * 1000
    assert copies_of(store) == ["executables/k"]


@pytest.fixture
def filled(far):
    far.put("executables/k", b"content" * 1000)
    far.put("models/m", b"document" * 1000)
    return far


@pytest.fixture
def unguarded():
    """A folder that everybody may enter, with a store in it."""
    with tempfile.TemporaryDirectory(prefix="warmpool-test-") as name:
        folder = Path(name)
        far = Far(folder / "far")
        far.put("executables/k", b"content" * 1000)
        far.put("models/m", b"document" * 1000)
        for one in (folder, far.root, far.root / "executables"):
            one.chmod(0o777)
        yield ReadThroughStore(far, folder / "near", 1 << 30), far


def test_a_folder_that_may_not_be_written_is_read_past_until_it_may(unguarded, caplog):
    store, far = unguarded
    store.folder.mkdir(mode=0o555)
    with unprivileged():
        assert_read_past(store, far)
        assert_read_past(store, far)
    assert_told_once(caplog, store, "Permission denied")
    store.folder.chmod(0o755)
    assert_recovers(store)


def test_a_folder_whose_place_is_taken_by_a_file_is_read_past_until_it_is_not(store, filled, caplog):
    store.folder.write_bytes(b"")
    assert_read_past(store, filled)
    assert_told_once(caplog, store, "Not a directory")
    store.folder.unlink()
    assert_recovers(store)


def test_copies_that_are_there_are_read_from_a_folder_that_may_not_be_written(unguarded):
    store, far = unguarded
    store.local_path("executables/k")
    store.get("models/m")
    far.asked.clear()
    for folder in (store.folder, *(found for found in store.folder.rglob("*") if found.is_dir())):
        folder.chmod(0o555)
    with unprivileged():
        other = ReadThroughStore(far, store.folder, 1 << 30)
        assert other.get("executables/k") == b"content" * 1000
        assert other.local_path("executables/k").read_bytes() == b"content" * 1000
        assert other.local_path("models/m").read_bytes() == b"document" * 1000
    assert far.asked == {"get models/m": 1}


FULL = """
import subprocess
import sys
from pathlib import Path
from tests.cache.test_read_through import Far, assert_read_past, assert_recovers, copies_of
from cache.read_through import ReadThroughStore

far, disk = Far(Path(sys.argv[1])), Path(sys.argv[2])
store = ReadThroughStore(far, disk / "near", 1 << 30)
ballast = disk / "ballast"
with ballast.open("wb", buffering=0) as stream:
    try:
        while True:
            stream.write(bytes(512))
    except OSError:
        pass
for _ in range(2):
    assert_read_past(store, far)
    assert [file for file in (disk / "near").rglob("*") if file.is_file()] == [], "something is left"
mapped = [store.local_path(path) for path in ("executables/k", "models/m")]
ballast.unlink()
far.asked.clear()
assert_recovers(store)
assert far.asked == {"get models/m": 1}, "what is in memory was downloaded again"
read = subprocess.run(["cat", *mapped], capture_output=True, check=True).stdout
assert read == b"content" * 1000 + b"document" * 1000, "another process cannot read what it was told of"
far.asked.clear()

# Copies of old give room to new ones, though fewer are there than were allowed.
for index in range(20):
    far.put(f"executables/{index}", bytes([index]) * 100_000)
    assert store.get(f"executables/{index}") == bytes([index]) * 100_000
assert "executables/19" in copies_of(store)
held = store.local_path("executables/19")
for index in range(20, 40):
    far.put(f"executables/{index}", bytes([index]) * 100_000)
    assert store.get(f"executables/{index}") == bytes([index]) * 100_000
assert held.read_bytes() == bytes([19]) * 100_000
assert not [asked for asked in far.asked if asked.startswith("get executables")], "one was read past a full disk"
print("done")
"""


def test_a_full_disk_is_read_past_until_it_is_not(filled, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'
    inside = ["sh", "-c", script, "sh", disk, sys.executable, "-c", FULL, filled.root, disk]
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here; the next test does without")
    done = subprocess.run(
        ["unshare", "-rm", *inside], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_in_the_middle_is_read_past_until_it_does_not(store, filled, monkeypatch, caplog, number):
    really = os.fsync

    def fsync(descriptor):
        if str(store.folder) in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(number, os.strerror(number))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert_read_past(store, filled)
    assert_told_once(caplog, store, os.strerror(number))
    assert [file for file in (store.folder / "objects").rglob("*") if file.is_file()] == []
    monkeypatch.undo()
    assert_recovers(store)


def test_a_name_too_long_for_a_copy_is_read_past(store, far):
    path = f"jax-cache/{'x' * 250}"
    far.put(path, b"content")
    assert store.get(path) == b"content"
    assert store.local_path(path).read_bytes() == b"content"
    store.discard(path)
    far.put(path, b"repaired")
    assert store.local_path(path).read_bytes() == b"repaired"
    store.put(path, b"repaired here")
    assert store.local_path(path).read_bytes() == b"repaired here"


def test_of_many_threads_that_want_a_file_that_is_not_kept_one_reads_it(store, far):
    far.put("executables/k", b"content")
    store.folder.write_bytes(b"")
    far.gate.clear()
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(store.local_path, "executables/k") for _ in range(8)]
        assert far.begun.wait(30)
        far.gate.set()
        files = {one.result() for one in asked}
    assert [file.read_bytes() for file in files] == [b"content"]
    assert far.asked["read_into executables/k"] == 1


def test_a_manifest_that_changes_where_none_is_kept_leaves_the_file_that_was_given_out(store, far):
    store.folder.write_bytes(b"")
    far.put("models/m", b"old")
    old = store.local_path("models/m")
    far.put("models/m", b"new")
    assert (store.local_path("models/m").read_bytes(), old.read_bytes()) == (b"new", b"old")


# With a real server, as it is opened


def nearest(store: Any) -> Any:
    """What lies below signatures and encryption."""
    return store.inner.inner


@pytest.fixture
def opened(gcs, bucket, monkeypatch, tmp_path):
    """Opens the bucket with these settings."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(uri=f"gs://{bucket}/folder", *, read_through=True, **settings):
        chosen = StoreSettings(store=uri, allow_unsigned=True, **settings)
        return nearest(open_store(chosen, read_through=read_through))

    return call


def test_a_bucket_has_a_folder_of_its_own_where_the_user_keeps_caches(opened, bucket, monkeypatch, tmp_path):
    store = opened()
    assert isinstance(store, ReadThroughStore)
    assert store.folder.parent == tmp_path / "cache" / "warmpool"
    assert opened(f"gs://{bucket}/folder/").folder == store.folder
    assert opened(f"gs://{bucket}/other").folder not in {store.folder, opened(f"gs://{bucket}").folder}
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert opened().folder.parent == tmp_path / "home" / ".cache" / "warmpool"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert opened().folder.parent == tmp_path / "home" / ".cache" / "warmpool"
    assert opened(cache_folder=str(tmp_path / "chosen")).folder.parent == tmp_path / "chosen"


def test_copies_are_kept_only_where_that_was_asked_for(opened, tmp_path):
    for settings in ({"read_through": False}, {"cache_bytes_max": 0}):
        assert not isinstance(opened(**settings), ReadThroughStore)
    folder = open_store(StoreSettings(store=str(tmp_path), allow_unsigned=True), read_through=True)
    assert isinstance(nearest(folder), LocalStore)
    with pytest.raises(ValueError, match=r"cache_bytes_max is -1, allowed: 0"):
        opened(cache_bytes_max=-1)


def test_who_moves_objects_sees_the_bucket_itself(opened, bucket):
    store = open_store(StoreSettings(store=f"gs://{bucket}", allow_unsigned=True), read_through=True)
    assert store.bottom is nearest(store).remote


def test_a_server_that_goes_and_comes_again_is_noticed_by_nobody_who_reads_what_was_read(tmp_path, monkeypatch):
    (tmp_path / "server").mkdir()
    with GcsServer(tmp_path / "server") as server:
        server.client().create_bucket("bucket")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        settings = StoreSettings(store="gs://bucket", allow_unsigned=True, cache_folder=str(tmp_path / "near"))
        store = nearest(open_store(settings, read_through=True))
        store.put("models/m", b"one")
        store.put("executables/k", b"content")
        store.names("models")
        server.stop()
        later = nearest(open_store(settings, read_through=True))
        for one in (store, later):
            started_s = time.monotonic()
            assert one.names("models") == ["m"]
            assert one.get("models/m") == b"one"
            assert one.local_path("models/m").read_bytes() == b"one"
            assert one.local_path("executables/k").read_bytes() == b"content"
            assert time.monotonic() - started_s < 60
        server.start()
        later.put("models/m", b"two")
        wait_for(lambda: store.get("models/m") == b"two")
