"""An executable that somebody should compile again is asked for once, however many miss it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from cache.local_store import LocalStore
from cache.wanted import Wanted, settle, want, wanted


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def test_nothing_is_wanted_of_an_empty_store(store):
    assert wanted(store) == []


def test_what_is_asked_for_says_why_and_since_when(store):
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert want(store, "cd", "it is damaged") is True
    asked = msgspec.json.decode(store.get("wanted/cd"), type=Wanted)
    assert (asked.key, asked.reason) == ("cd", "it is damaged")
    assert before <= datetime.fromisoformat(asked.since) <= datetime.now(UTC)


def test_who_asks_first_is_remembered(store):
    assert want(store, "cd", "it is damaged") is True
    first = store.get("wanted/cd")
    assert want(store, "cd", "it is missing") is False
    assert store.get("wanted/cd") == first


def test_of_many_who_ask_at_once_one_is_the_first(store):
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda number: want(LocalStore(store.root), "cd", str(number)), range(16)))
    assert told.count(True) == 1
    assert msgspec.json.decode(store.get("wanted/cd"), type=Wanted).reason == str(told.index(True))


def test_keys_are_listed_until_they_are_settled_and_can_be_asked_for_again(store):
    for key in ("cd", "ab", "ef"):
        want(store, key, "it is missing")
    assert wanted(store) == ["ab", "cd", "ef"]
    settle(store, "cd")
    settle(store, "cd")  # nothing happens
    assert wanted(store) == ["ab", "ef"]
    assert want(store, "cd", "it is missing") is True
    assert wanted(store) == ["ab", "cd", "ef"]


@pytest.mark.parametrize("key", ["", "../ab", "/ab", "a b"])
def test_what_makes_no_path_is_no_key(store, key):
    for ask in (lambda: want(store, key, "it is missing"), lambda: settle(store, key)):
        with pytest.raises(ValueError, match="is not a store path"):
            ask()
    assert list(store.entries("")) == []
