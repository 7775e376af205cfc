"""A sweep removes what is needless and old, and nothing else."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.errors import NotStored, StoreUnavailable
from cache.local_store import LocalStore
from cache.sweep import GRACE_S, Reused, sweep
from tests.cache.meddling import MeddledStore

DAY_S = 24 * 3600.0


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def put_aged(store, path, age_s, data=b"12345"):
    store.put(path, data)
    written_s = time.time() - age_s
    os.utime(store.root / path, (written_s, written_s))


def paths_of(store):
    return {entry.path for entry in store.entries("")}


def removed(swept):
    return {entry.path for entry in swept.removed}


def test_needless_objects_go_and_the_others_are_counted(store):
    for name, size in (("a", 1), ("b", 20), ("c", 300), ("d", 4000)):
        put_aged(store, f"executables/{name}", 2 * DAY_S, bytes(size))
    swept = sweep(store, lambda entry, _: entry.path[-1] in "bd", dry_run=False)
    assert removed(swept) == {"executables/b", "executables/d"}
    assert (swept.removed_bytes, swept.kept, swept.kept_bytes) == (4020, 2, 301)
    assert paths_of(store) == {"executables/a", "executables/c"}


def test_a_dry_run_says_the_same_and_removes_nothing(store):
    for name in "abcd":
        put_aged(store, f"executables/{name}", 2 * DAY_S)
    dry = sweep(store, lambda entry, _: entry.path[-1] in "bd", dry_run=True)
    assert paths_of(store) == {f"executables/{name}" for name in "abcd"}
    wet = sweep(store, lambda entry, _: entry.path[-1] in "bd", dry_run=False)
    assert removed(dry) == removed(wet)
    assert (dry.removed_bytes, dry.kept, dry.kept_bytes) == (wet.removed_bytes, wet.kept, wet.kept_bytes)


def test_what_is_young_stays_whatever_it_is(store):
    assert GRACE_S == DAY_S
    put_aged(store, "executables/old", DAY_S + 60)
    put_aged(store, "executables/young", DAY_S - 60)
    put_aged(store, "executables/of-tomorrow", -DAY_S)
    asked = []

    def needless(entry, age_s):
        asked.append((entry.path, age_s))
        return True

    sweep(store, needless, dry_run=False)
    assert [path for path, _ in asked] == ["executables/old"]
    assert asked[0][1] == pytest.approx(DAY_S + 60, abs=30)
    assert paths_of(store) == {"executables/young", "executables/of-tomorrow"}
    sweep(store, lambda *_: True, grace_s=3600.0, dry_run=False)
    assert paths_of(store) == {"executables/of-tomorrow"}


def test_what_somebody_else_removes_meanwhile_is_no_error(tmp_path):
    store = MeddledStore(tmp_path / "store")
    for name in "ab":
        put_aged(store, f"executables/{name}", 2 * DAY_S)
    other = LocalStore(store.root)

    def remove_all(operation, path):
        for name in "ab":
            other.delete(f"executables/{name}")

    store.before = remove_all
    assert removed(sweep(store, lambda *_: True, dry_run=False)) == set()
    assert paths_of(store) == set()


def test_a_store_that_goes_away_in_the_middle_ends_the_sweep(tmp_path):
    store = MeddledStore(tmp_path / "store")
    for name in "abc":
        put_aged(store, f"executables/{name}", 2 * DAY_S)
    left = [1]

    def fail(operation, path):
        if left[0] == 0:
            raise StoreUnavailable("it is away")
        left[0] -= 1

    store.before = fail
    with pytest.raises(StoreUnavailable):
        sweep(store, lambda *_: True, dry_run=False)
    assert len(paths_of(store)) == 2


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.booleans(), st.floats(0, 10 * DAY_S))))
def test_exactly_what_is_needless_and_old_goes(tmp_path_factory, objects):
    store = LocalStore(tmp_path_factory.mktemp("store"))
    objects = {name: (needed, age_s) for name, (needed, age_s) in objects.items() if abs(age_s - 3 * DAY_S) > 60}
    for name, (_, age_s) in objects.items():
        put_aged(store, name, age_s)
    sweep(store, lambda entry, _: not objects[entry.path][0], grace_s=3 * DAY_S, dry_run=False)
    assert paths_of(store) == {name for name, (needed, age_s) in objects.items() if needed or age_s < 3 * DAY_S}


@pytest.mark.parametrize("how", ["put", "touch"])
def test_what_is_written_since_it_was_listed_stays(tmp_path, how):
    store = MeddledStore(tmp_path / "store")
    for name in "ab":
        put_aged(store, f"executables/{name}", 2 * DAY_S)
    other = LocalStore(store.root)

    def use_again(operation, path):
        for name in "ab":
            other.touch(f"executables/{name}") if how == "touch" else other.put(f"executables/{name}", b"12345")

    store.before = use_again
    swept = sweep(store, lambda *_: True, dry_run=False)
    assert (swept.removed, swept.kept, swept.kept_bytes) == ([], 2, 10)
    assert paths_of(store) == {"executables/a", "executables/b"}


def test_what_is_needless_is_asked_once_more_between_the_listing_and_the_first_that_goes(tmp_path):
    store = MeddledStore(tmp_path / "store")
    for name in "abc":
        put_aged(store, f"executables/{name}", 2 * DAY_S)
    happened = []
    store.before = lambda operation, path: happened.append(operation)

    def again():
        happened.append("again")
        return lambda entry, _: entry.path.endswith("b")

    assert removed(sweep(store, lambda *_: True, dry_run=False, again=again)) == {"executables/b"}
    assert happened == ["again", "delete_if"]
    sweep(store, lambda *_: True, dry_run=True, again=lambda: pytest.fail("nothing goes"))
    sweep(store, lambda *_: False, dry_run=False, again=lambda: pytest.fail("nothing goes"))


def test_what_is_old_is_young_again_once_it_is_used_and_what_is_young_is_left_alone(store):
    put_aged(store, "executables/old", GRACE_S / 2 + 60)
    put_aged(store, "executables/young", GRACE_S / 2 - 60)
    before = {entry.path: entry for entry in store.entries("")}
    reused = Reused(store)
    for _ in range(2):
        reused.keep("executables/old")
        reused.keep("executables/young")
    after = {entry.path: entry for entry in store.entries("")}
    assert after["executables/young"] == before["executables/young"]
    assert time.time() - after["executables/old"].modified_s < 30
    assert after["executables/old"].generation != before["executables/old"].generation
    generation = after["executables/old"].generation
    reused.keep("executables/old")
    assert store.get_versioned("executables/old")[1] == generation


def test_who_would_use_what_is_gone_is_told(store):
    reused = Reused(store)
    put_aged(store, "executables/there", 0)
    with pytest.raises(NotStored):
        reused.keep("executables/gone")
    put_aged(store, "executables/since", 3 * DAY_S)
    reused.keep("executables/since")
    assert removed(sweep(store, lambda *_: True, dry_run=False)) == set()
