"""The records of rollouts, in a folder as a store."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from cache.local_store import LocalStore
from cache.records import RECORD_BYTES_MAX
from cache.store import is_path
from warmpool.manifest import RolloutSpec
from warmpool.rollout.record import EVENTS_MAX, Event, Rollout, add_event, read_record, record_path

PATH = record_path("toy", RolloutSpec(started_s=1_796_043_531.0421))
NEW = Rollout(model="toy", stable="1", canary="2")


def event(what: Any = "start", time_s: float = 1.0, **more: Any) -> Event:
    return Event(what=what, time_s=time_s, who="ada", **more)


@pytest.fixture
def store(tmp_path: Any) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_a_record_is_named_by_its_model_and_the_time_of_its_start() -> None:
    assert PATH == "rollouts/toy/20261130T125851.042Z.json"
    assert is_path(PATH)
    assert record_path("toy", RolloutSpec(started_s=1_796_043_531.9999)).endswith(".999Z.json")


def test_what_was_rolled_back_is_so_for_good_and_what_was_not_ended_runs(store: LocalStore) -> None:
    assert read_record(store, PATH) is None
    states = [add_event(store, PATH, NEW, event(what)).state for what in ("start", "promote", "rollback", "promote")]
    assert states == ["running", "promoted", "rolled back", "rolled back"]
    found = read_record(store, PATH)
    assert found is not None
    assert [one.what for one in found.events] == ["start", "promote", "rollback", "promote"]
    assert found.decision == found.events[1]


def test_several_who_write_at_once_all_have_their_word(store: LocalStore) -> None:
    writers = [
        threading.Thread(target=add_event, args=(store, PATH, NEW, event("rollback", float(number))))
        for number in range(6)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = read_record(store, PATH)
    assert found is not None
    assert sorted(one.time_s for one in found.events) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("count", [1, 50, 5000])
def test_a_record_stays_small_and_never_forgets_that_it_was_rolled_back(store: LocalStore, count: int) -> None:
    figures = {f"figure {number} {chr(1) * 2}": 1 / 3 for number in range(count)}
    for what in (*["start"] * (EVENTS_MAX + 10), "promote", "rollback", *["start"] * 5):
        add_event(store, PATH, NEW, event(what, reason=chr(1) * 10_000, figures=figures))
    found = read_record(store, PATH)
    assert found is not None
    assert len(found.events) == EVENTS_MAX + 2
    assert len(store.get(PATH)) <= RECORD_BYTES_MAX
    assert found.state == "rolled back"
    assert (found.events[0].figures == figures) == (count < 5000)


def test_a_figure_that_is_no_number_does_not_make_the_record_unreadable(store: LocalStore) -> None:
    add_event(store, PATH, NEW, event("rollback", figures={"a": float("inf"), "b": float("nan"), "c": 1.5}))
    found = read_record(store, PATH)
    assert found is not None
    assert found.events[0].figures == {"c": 1.5}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"model":"toy"}', b"[" * 100_000])
def test_what_is_no_record_is_none_and_the_next_word_begins_it_anew(store: LocalStore, content: bytes) -> None:
    store.put(PATH, content)
    assert read_record(store, PATH) is None
    assert add_event(store, PATH, NEW, event("rollback")).state == "rolled back"
    assert msgspec.json.decode(store.get(PATH), type=Rollout).canary == "2"
