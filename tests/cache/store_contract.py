"""What every store does, as a class of tests; a test file has a subclass whose `place` says where the store lies."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.errors import CacheError, NotStored
from cache.fetching import fetch_all
from tests.cache.store_place import Place, start

WAIT_S_MAX = 60.0
LARGE_BYTES = 9 << 20  # GCS takes it in more than one request
FOLDERS = ["models/m", "executables", "leases"]  # documents, what does not change, and all else

_NUMBERS = itertools.count()
# A property is of each store, and each example has a folder of its own.
SHARED = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)
names = st.text("abzAZ09._-", min_size=1, max_size=8).filter(lambda name: name[0] not in "._-")
paths = st.lists(names, min_size=1, max_size=3).map("/".join)

NO_PATHS = [
    *("", ".", "..", "../a", "a/..", "a/../b", "a/./b", "/a", "/", "a/", "a//b", ".hidden", "a/.hidden"),
    *("a/.unfinished-x", "-a", "a b", "a\n", "a\0b", "a\\b", "ä", "a/\u0661", "~", "C:a", "models/../a", "weights/.x"),
]


def wait_for(holds):
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


class StoreContract:
    """The tests."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def store(self, place: Place) -> Any:
        return place.open()

    # What was put is there

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_what_was_put_is_there(self, store, folder):
        store.put(f"{folder}/a", b"one")
        assert store.get(f"{folder}/a") == b"one"
        assert store.local_path(f"{folder}/a").read_bytes() == b"one"

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_a_put_replaces_what_was_there(self, store, folder):
        store.put(f"{folder}/a", b"a longer one")
        assert store.local_path(f"{folder}/a").read_bytes() == b"a longer one"
        store.put(f"{folder}/a", b"two")
        assert store.get(f"{folder}/a") == b"two"
        assert store.local_path(f"{folder}/a").read_bytes() == b"two"
        assert store.names(folder) == ["a"]

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_an_empty_object_is_an_object(self, store, folder):
        store.put(f"{folder}/a", b"")
        assert store.get(f"{folder}/a") == b""
        assert store.get(f"{folder}/a", bytes_max=5) == b""
        assert store.local_path(f"{folder}/a").read_bytes() == b""
        assert store.names(folder) == ["a"]
        assert store.names(f"{folder}/a") == []
        assert [entry.size_bytes for entry in store.entries("")] == [0]

    @pytest.mark.parametrize("folder", FOLDERS)
    @pytest.mark.parametrize("bytes_max", [0, 1, 9, 10, 11, 1 << 20])
    def test_no_more_is_read_than_was_asked_for(self, place, store, folder, bytes_max):
        store.put(f"{folder}/a", b"0123456789")
        assert store.get(f"{folder}/a", bytes_max=bytes_max) == b"0123456789"[:bytes_max]
        store.discard(f"{folder}/a")
        assert store.get(f"{folder}/a", bytes_max=bytes_max) == b"0123456789"[:bytes_max]
        assert store.get(f"{folder}/a") == b"0123456789"

    @settings(max_examples=15, suppress_health_check=SHARED)
    @given(st.dictionaries(paths, st.binary(max_size=20), max_size=6))
    def test_any_set_of_objects_that_do_not_lie_below_each_other_is_kept(self, store, objects):
        objects = {
            path: data for path, data in objects.items() if not any(other.startswith(f"{path}/") for other in objects)
        }
        top = f"x{next(_NUMBERS)}"
        for path, data in objects.items():
            store.put(f"{top}/{path}", data)
        assert store.names(top) == sorted({path.partition("/")[0] for path in objects})
        assert {path: store.get(f"{top}/{path}") for path in objects} == objects
        assert {entry.path: entry.size_bytes for entry in store.entries(top)} == {
            f"{top}/{path}": len(data) for path, data in objects.items()
        }

    @pytest.mark.parametrize("size_bytes", [0, 1, LARGE_BYTES])
    def test_a_file_is_stored_without_its_name_or_its_mode(self, store, tmp_path, size_bytes):
        source = tmp_path / "source"
        source.write_bytes(os.urandom(size_bytes))
        source.chmod(0o600)
        store.put_file("weights/w", source)
        assert store.get("weights/w") == source.read_bytes()
        store.discard("weights/w")
        assert store.local_path("weights/w").read_bytes() == source.read_bytes()
        assert [(entry.path, entry.size_bytes) for entry in store.entries("")] == [("weights/w", size_bytes)]

    def test_a_file_that_does_not_exist_leaves_nothing(self, store, tmp_path):
        with pytest.raises(FileNotFoundError):
            store.put_file("weights/w", tmp_path / "missing")
        assert list(store.entries("")) == []

    # Nothing is there

    @pytest.mark.parametrize("path", ["a", "a/b", "models/m/1/manifest.json", "executables/k", "leases/k"])
    def test_where_nothing_is_stored_every_method_says_so(self, store, path):
        assert store.names(path) == []
        assert list(store.entries(path)) == []
        for call in (store.get, store.local_path, store.get_versioned, lambda path: store.get(path, bytes_max=1)):
            with pytest.raises(NotStored, match=f"nothing is stored under '{path}'") as caught:
                call(path)
            assert caught.value.path == path
        store.delete(path)
        store.discard(path)

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_a_folder_is_no_object(self, store, folder):
        store.put(f"{folder}/a/b", b"")
        for call in (store.get, store.local_path, store.get_versioned):
            with pytest.raises(NotStored):
                call(f"{folder}/a")

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_what_was_deleted_is_gone(self, store, folder):
        for path in (f"{folder}/a", f"{folder}/b"):
            store.put(path, b"x")
            store.local_path(path)
        store.delete(f"{folder}/a")
        assert store.names(folder) == ["b"]
        for call in (store.get, store.local_path):
            with pytest.raises(NotStored):
                call(f"{folder}/a")
        store.put(f"{folder}/a", b"again")
        assert store.get(f"{folder}/a") == b"again"

    @pytest.mark.parametrize("path", NO_PATHS)
    def test_what_is_no_path_is_refused_by_every_method(self, store, tmp_path, path):
        source = tmp_path / "source"
        source.write_bytes(b"x")
        calls = [
            *(store.get, store.local_path, store.names, store.delete, store.discard, store.get_versioned),
            lambda path: store.get(path, bytes_max=1),
            lambda path: store.put(path, b"x"),
            lambda path: store.put_file(path, source),
            lambda path: store.put_if(path, b"x", None),
            lambda path: store.put_if(path, b"x", "1"),
            lambda path: store.delete_if(path, "1"),
            store.touch,
        ]
        if path:  # the whole store
            calls.append(lambda path: list(store.entries(path)))
        for call in calls:
            with pytest.raises(ValueError, match="is not a store path: use names of letters"):
                call(path)
        assert list(store.entries("")) == []

    # What is there

    def test_only_what_lies_directly_in_the_folder_is_named_in_order(self, store):
        for path in ("m/b/2", "m/b/10", "m/a-b/c/d", "m/a/c", "m/a.json", "mm/x", "n"):
            store.put(path, b"")
        assert store.names("m") == ["a", "a-b", "a.json", "b"]
        assert store.names("m/b") == ["10", "2"]
        assert store.names("n") == []

    def test_every_object_below_a_folder_is_an_entry(self, store):
        before_s = time.time()
        for path in ("m/b/2", "m/c", "mm/x", "executables/k"):
            store.put(path, path.encode())
        assert sorted(entry.path for entry in store.entries("")) == ["executables/k", "m/b/2", "m/c", "mm/x"]
        assert sorted(entry.path for entry in store.entries("m")) == ["m/b/2", "m/c"]
        assert sorted(entry.path for entry in store.entries("m/b")) == ["m/b/2"]
        for entry in store.entries(""):
            assert entry.size_bytes == len(entry.path)
            assert before_s - 2 < entry.modified_s < time.time() + 2

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_whatever_writes_an_object_gives_it_another_generation_and_a_listing_knows_it(
        self, store, tmp_path, folder
    ):
        path, source = f"{folder}/a", tmp_path / "source"
        source.write_bytes(b"same")
        writes = (
            lambda: store.put(path, b"same"),
            lambda: store.put(path, b"same"),
            lambda: store.touch(path),
            lambda: store.put_file(path, source),
            lambda: store.put_if(path, b"same", store.get_versioned(path)[1]),
        )
        generations = []
        for write in writes:
            before_s = time.time()
            write()
            data, generation = store.get_versioned(path)
            (entry,) = store.entries("")
            assert (data, entry.generation) == (b"same", generation)
            assert entry.modified_s > before_s - 2
            generations.append(generation)
        assert len(set(generations)) == len(writes)
        with pytest.raises(NotStored):
            store.touch(f"{folder}/b")

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_what_is_discarded_stays_in_the_store(self, store, folder):
        store.put(f"{folder}/a", b"x")
        store.local_path(f"{folder}/a")
        store.discard(f"{folder}/a")
        assert store.get(f"{folder}/a") == b"x"
        assert store.local_path(f"{folder}/a").read_bytes() == b"x"

    def test_a_local_file_keeps_its_content_while_the_object_is_replaced(self, store):
        """A lane that has mapped it goes on with what it mapped."""
        store.put("executables/k", b"one")
        with store.local_path("executables/k").open("rb") as opened:
            store.put("executables/k", b"another")
            assert opened.read() == b"one"

    def test_many_are_fetched_at_once_and_each_is_itself_or_its_own_error(self, store):
        kept = {f"executables/{index}": os.urandom(1 + 1000 * index) for index in range(40)}
        for path, data in kept.items():
            store.put(path, data)
            store.discard(path)
        shown: list[tuple[str, int]] = []
        paths = [*kept, "executables/none", "no path", "", *kept]
        fetched = fetch_all(store, paths, show=lambda *file: shown.append(file))
        assert list(fetched) == list(dict.fromkeys(paths))
        assert isinstance(fetched.pop("executables/none"), NotStored)
        assert [type(fetched.pop(path)) for path in ("no path", "")] == [ValueError, ValueError]
        assert {path: read(file) for path, file in fetched.items()} == kept
        assert sorted(shown) == sorted((path, len(data)) for path, data in kept.items())

    # On a condition

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_a_conditional_put_succeeds_where_the_object_is_the_one_that_was_seen(self, store, folder):
        path = f"{folder}/a"
        first = store.put_if(path, b"one", None)
        assert store.get_versioned(path) == (b"one", first)
        assert store.put_if(path, b"none", None) is None
        second = store.put_if(path, b"two", first)
        assert second not in {None, first}
        assert store.get_versioned(path) == (b"two", second)
        assert store.put_if(path, b"late", first) is None
        assert store.get(path) == b"two"

    @pytest.mark.parametrize("generation", ["0", "1", "00", "-1", "", "x", "1" * 40, "\u0661"])
    def test_a_generation_that_no_object_has_is_never_the_one_that_is_there(self, store, generation):
        assert store.put_if("leases/a", b"x", generation) is None
        assert store.names("leases") == []
        store.put_if("leases/a", b"x", None)
        assert store.put_if("leases/a", b"y", generation) is None
        assert store.get("leases/a") == b"x"

    def test_a_conditional_delete_removes_what_was_seen(self, store):
        generation = store.put_if("leases/a", b"one", None)
        assert store.delete_if("leases/a", generation) is True
        assert store.names("leases") == []
        assert store.delete_if("leases/a", generation) is False
        assert store.put_if("leases/a", b"two", generation) is None
        assert store.put_if("leases/a", b"two", None) is not None

    def test_a_conditional_delete_leaves_what_was_not_seen(self, store):
        first = store.put_if("leases/a", b"one", None)
        second = store.put_if("leases/a", b"two", first)
        assert store.delete_if("leases/a", first) is False
        assert store.get_versioned("leases/a") == (b"two", second)

    # Many at the same time

    def test_of_sixteen_threads_that_put_where_nothing_is_exactly_one_does(self, store):
        for turn in range(5):
            start_line = threading.Barrier(16)

            def put(name, path=f"leases/{turn}", start_line=start_line):
                start_line.wait(WAIT_S_MAX)
                return store.put_if(path, b"%d" % name, None)

            with ThreadPoolExecutor(16) as pool:
                generations = list(pool.map(put, range(16)))
            (winner,) = [name for name, generation in enumerate(generations) if generation is not None]
            assert store.get_versioned(f"leases/{turn}") == (b"%d" % winner, generations[winner])

    def test_of_eight_processes_that_put_where_nothing_is_exactly_one_does(self, place, store):
        racers = [start(place, "race", "leases/a", name) for name in range(8)]
        try:
            assert [racer.hear() for racer in racers] == ["ready"] * 8
            for racer in racers:
                racer.tell("go")
            said = [racer.hear() for racer in racers]
        finally:
            end(racers)
        assert sorted(said) == ["lost"] * 7 + ["won"]
        assert store.get("leases/a") == b"%d" % said.index("won")

    def test_what_processes_count_together_is_never_counted_wrong(self, place, store):
        store.put_if("leases/count", b"0", None)
        counters = [start(place, "count", "leases/count", 25) for _ in range(3)]
        end(counters)
        assert [counter.returncode for counter in counters] == [0] * 3
        assert store.get("leases/count") == b"75"

    @pytest.mark.parametrize("path", ["models/shared", "executables/shared"])
    def test_no_reader_sees_a_torn_object_while_eight_processes_write_it(self, place, store, path):
        writers = [start(place, "write", path, letter) for letter in "abcdefgh"]
        seen: set[bytes] = set()
        try:
            assert [writer.hear() for writer in writers] == ["begun"] * 8
            deadline_s = time.monotonic() + WAIT_S_MAX
            while len(seen) < 40:
                assert time.monotonic() < deadline_s
                store.discard(path)
                try:
                    data = store.local_path(path).read_bytes() if len(seen) % 2 else store.get(path)
                except (NotStored, FileNotFoundError):  # the file: another process put a new one meanwhile
                    continue
                assert whole(data), "a part of what one of them wrote, or parts of two"
                seen.add(data)
        finally:
            end(writers)
        assert [writer.returncode for writer in writers] == [0] * 8
        assert whole(store.get(path))

    # Killed

    def test_a_process_killed_while_it_puts_leaves_the_old_object_or_a_new_one(self, place, store):
        for _ in range(3):
            writer = start(place, "write", "executables/shared", "a")
            assert writer.hear() == "begun"
            os.kill(writer.pid, signal.SIGKILL)
            end([writer])
            store.discard("executables/shared")
            assert whole(store.get("executables/shared"))
            assert store.names("executables") == ["shared"]
            assert [entry.path for entry in store.entries("")] == ["executables/shared"]
            store.put("executables/shared", b"aa")
            assert store.get("executables/shared") == b"aa"


def read(fetched: Path | CacheError | ValueError) -> bytes:
    """The content of a file that was fetched."""
    assert isinstance(fetched, Path), fetched
    return fetched.read_bytes()


def whole(data: bytes) -> bool:
    """Whether this is all of one of the objects that `store_place.write` puts."""
    return len(data) == int(data[:8]) and len(set(data[8:])) == 1


def end(processes):
    """Close what they read from, wait for them, and kill what does not end by that."""
    for process in processes:
        process.close()
