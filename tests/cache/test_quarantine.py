"""What is set aside is whole somewhere at every moment, and what took its place meanwhile stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.errors import NotStored, StoreUnavailable
from cache.local_store import LocalStore
from cache.quarantine import Kept, Reason, quarantine, quarantined, restore
from tests.cache.meddling import MeddledStore

PATH = "executables/abcd"
WEIGHTS = "weights/abcd"
PATHS = (PATH, WEIGHTS, "models/toy/1/targets/0123.json")
CHANGING = ("put", "put_file", "delete", "delete_if")


class Killed(BaseException):
    """Ends an operation where a killed process would end."""


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def meddled(tmp_path):
    return MeddledStore(tmp_path / "store")


def paths_of(store):
    return {entry.path for entry in LocalStore(store.root).entries("")}


@pytest.mark.parametrize("path", PATHS)
def test_an_object_moves_and_its_reason_lies_beside_it(store, path):
    store.put(path, b"damaged")
    store.put("executables/other", b"sound")
    before = datetime.now(UTC)
    kept = quarantine(store, path, "its digest is another one")
    assert kept is not None
    assert (kept.path, kept.key, kept.reason) == (path, path.rpartition("/")[2], "its digest is another one")
    assert timedelta() <= datetime.now(UTC) - kept.when + timedelta(milliseconds=1)
    assert before - timedelta(milliseconds=1) <= kept.when
    assert store.get(kept.kept_at) == b"damaged"
    place = kept.kept_at.removesuffix(f"/{path}")
    assert place.startswith("quarantine/")
    assert "/" not in place.removeprefix("quarantine/")
    assert paths_of(store) == {kept.kept_at, f"{place}/reason.json", "executables/other"}
    said = msgspec.json.decode(store.get(f"{place}/reason.json"), type=Reason)
    assert (said.path, said.reason, said.when) == (path, kept.reason, kept.when)
    assert quarantined(store) == [kept]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_gone_already_is_not_set_aside(store, path):
    assert quarantine(store, path, "damaged") is None
    assert paths_of(store) == set()


def test_only_the_generation_that_was_looked_at_is_set_aside(store):
    store.put(PATH, b"damaged")
    seen = store.get_versioned(PATH)[1]
    store.put(PATH, b"sound")
    assert quarantine(store, PATH, "damaged", seen) is None
    assert paths_of(store) == {PATH}
    assert quarantine(store, PATH, "damaged", store.get_versioned(PATH)[1]) is not None
    assert PATH not in paths_of(store)


@pytest.mark.parametrize(("path", "moment"), [(path, m) for path in PATHS for m in ("copy", "delete_if")])
@pytest.mark.parametrize("content", [b"sound", b"damaged"])
def test_an_object_that_takes_the_place_in_the_middle_stays(meddled, path, moment, content):
    """Before its copy is written, and just before the original would go; whatever it is, nobody has looked at it."""
    meddled.put(path, b"damaged")
    moments = {"put", "put_file"} if moment == "copy" else {moment}

    def replace(operation, _):
        if operation in moments:
            meddled.put(path, content)

    meddled.before = replace
    assert quarantine(meddled, path, "damaged") is None
    meddled.before = lambda operation, path: None
    assert meddled.get(path) == content
    assert paths_of(meddled) == {path}
    assert quarantined(meddled) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("path", [PATH, WEIGHTS])
def test_killed_at_any_step_it_is_whole_in_one_place_or_the_other_and_the_next_try_ends_it(tmp_path, path, when):
    """Every operation that changes the store, just before it and just after it."""
    survived = 0
    for step in range(10):
        store = MeddledStore(tmp_path / f"{path[:3]}{when}{step}")
        store.put(path, b"damaged")
        remaining = [step]

        def kill(operation, _, remaining=remaining):
            if operation in CHANGING:
                if remaining[0] == 0:
                    raise Killed
                remaining[0] -= 1

        setattr(store, when, kill)
        try:
            quarantine(store, path, "damaged")
        except Killed:
            pass
        else:
            survived += 1
        store.before = store.after = lambda operation, path: None
        there = [store.get(place) for place in paths_of(store) if not place.endswith("/reason.json")]
        assert there
        assert set(there) == {b"damaged"}
        if path in paths_of(store):
            assert quarantine(store, path, "damaged") is not None
        assert path not in paths_of(store)
        assert {(one.path, one.reason) for one in quarantined(store)} == {(path, "damaged")}
        assert all(store.get(one.kept_at) == b"damaged" for one in quarantined(store))
    assert 0 < survived <= 7  # three steps and the end were passed


def test_weights_are_never_held_in_memory(meddled):
    meddled.put(WEIGHTS, b"damaged")
    meddled.before = lambda operation, path: pytest.fail(operation) if operation.startswith("get") else None
    kept = quarantine(meddled, WEIGHTS, "damaged")
    assert kept is not None
    meddled.before = lambda operation, path: None
    assert meddled.get(kept.kept_at) == b"damaged"


def test_what_is_set_aside_is_the_stored_object_and_not_a_local_copy_of_it(tmp_path):
    """With weights it is the file that a store gives: of a copy, if it was not told to forget that one."""

    class Near(LocalStore):
        copied = True

        def discard(self, path):
            self.copied = False

        def local_path(self, path):
            return self.root / "copies" / "abcd" if self.copied else super().local_path(path)

    store = Near(tmp_path / "store")
    store.put("copies/abcd", b"as it was once")
    store.put(WEIGHTS, b"damaged")
    kept = quarantine(store, WEIGHTS, "damaged")
    assert kept is not None
    assert store.get(kept.kept_at) == b"damaged"


def test_where_nothing_can_be_written_the_original_stays(store):
    store.put(PATH, b"damaged")
    store.put("quarantine", b"a file where the folder would be")
    with pytest.raises(StoreUnavailable, match="quarantine/"):
        quarantine(store, PATH, "damaged")
    assert store.get(PATH) == b"damaged"


def test_the_oldest_comes_first_and_what_has_no_reason_is_not_there(store):
    for day, code in ((30, "0000"), (28, "ffff"), (29, "8888")):
        said = Reason(path=PATH, reason=str(day), when=datetime.now(UTC))
        store.put(f"quarantine/202611{day}T000000-{code}/reason.json", msgspec.json.encode(said))
    store.put(f"quarantine/20261101T000000-0000/{PATH}", b"killed before its reason was there")
    store.put("quarantine/20261102T000000-0000/reason.json", b"{")
    store.put("quarantine/20261103T000000-0000/reason.json", b'{"path": 1}')
    assert [one.reason for one in quarantined(store)] == ["28", "29", "30"]


@pytest.mark.parametrize(
    "changes",
    [
        {"when": "yesterday"},
        {"when": ""},
        {"when": 1},
        {"when": "2026-11-30T07:17:11"},
        {"when": "9" * 40},
        {"path": ""},
        {"path": "models/../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": None},
        {"reason": 1},
    ],
)
def test_a_reason_that_makes_no_sense_sets_nothing_aside(store, changes):
    said = {"path": PATH, "reason": "damaged", "when": "2026-11-30T07:17:11Z"}
    store.put("quarantine/20261102T000000-0000/reason.json", msgspec.json.encode(said | changes))
    assert quarantined(store) == []


def test_where_an_object_is_kept_its_folder_says_and_not_the_reason(store):
    """Else `_forget` would remove what somebody wrote there."""
    said = {"path": PATH, "reason": "damaged", "when": "2026-11-30T07:17:11Z", "key": "x", "kept_at": "weights/w"}
    store.put("quarantine/20261102T000000-0000/reason.json", msgspec.json.encode(said))
    (kept,) = quarantined(store)
    assert (kept.key, kept.kept_at) == ("abcd", f"quarantine/20261102T000000-0000/{PATH}")


def test_what_is_put_back_is_where_it_was_and_nothing_is_left(store):
    store.put(PATH, b"not damaged at all")
    kept = quarantine(store, PATH, "a mistake")
    assert kept is not None
    assert restore(store, kept) is True
    assert store.get(PATH) == b"not damaged at all"
    assert paths_of(store) == {PATH}


def test_what_took_its_place_is_not_replaced_by_what_is_put_back(store):
    store.put(PATH, b"damaged")
    kept = quarantine(store, PATH, "damaged")
    assert kept is not None
    store.put(PATH, b"sound")
    assert restore(store, kept) is False
    assert store.get(PATH) == b"sound"
    assert quarantined(store) == [kept]


def test_what_is_not_kept_any_more_cannot_be_put_back(store):
    kept = Kept(path=PATH, key="abcd", reason="", when=datetime.now(UTC), kept_at=f"quarantine/gone/{PATH}")
    with pytest.raises(NotStored):
        restore(store, kept)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.binary(max_size=40), st.text(max_size=20)), max_size=6))
def test_whatever_is_set_aside_can_be_told_apart_and_comes_back_as_it_was(tmp_path_factory, damages):
    store = LocalStore(tmp_path_factory.mktemp("store"))
    kept = []
    for path, data, reason in damages:
        store.put(path, data)
        kept.append(quarantine(store, path, reason))
    assert {one.kept_at for one in quarantined(store)} == {one.kept_at for one in kept if one}
    assert len({one.kept_at for one in kept if one}) == len(damages)
    for one, (path, data, reason) in zip(kept, damages, strict=True):
        assert one is not None
        assert (one.path, one.reason) == (path, reason)
        assert restore(store, one)
        assert store.get(path) == data
        store.delete(path)
    assert paths_of(store) == set()


@pytest.mark.parametrize("path", PATHS)
def test_a_copy_whose_reason_cannot_be_written_is_taken_back(store, path, monkeypatch):
    """As on a full disk, which many such copies would only keep full."""
    store.put(path, b"damaged")
    put = store.put

    def full(at, data):
        if at.endswith("/reason.json"):
            raise StoreUnavailable("No space left on device")
        put(at, data)

    monkeypatch.setattr(store, "put", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        quarantine(store, path, "damaged")
    assert paths_of(store) == {path}
