"""What a store says is served is read again and again, and checked when it has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.errors import StoreUnavailable
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.line_versions import serve
from warmpool.manifest import Serving, serving_path
from warmpool.serving_records import ServingRecords


class Counting(SignedStore):
    """Counts what it checks; may be away."""

    checked = 0
    away = False

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        self.checked += 1
        return super().get(path, bytes_max=bytes_max)

    def names(self, folder: str) -> list[str]:
        if self.away:
            raise StoreUnavailable("it is away")
        return super().names(folder)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(LocalStore(tmp_path / "store"), ANYONE)


def test_each_model_that_is_served_is_read_and_others_are_not(store: Counting) -> None:
    store.put("models/unserved/1/manifest.json", b"{}\n")
    serve(store, "1", "one")
    serve(store, "2", "two", previous="1")
    assert ServingRecords(store).read() == {"one": Serving(stable="1"), "two": Serving(stable="2", previous="1")}


def test_what_has_not_changed_is_not_checked_anew(store: Counting) -> None:
    serve(store, "1", "one")
    records = ServingRecords(store)
    first = records.read()
    assert [records.read() for _ in range(3)] == [first] * 3
    assert store.checked == 1
    serve(store, "2", "one")
    assert records.read() == {"one": Serving(stable="2")}
    assert store.checked == 2


def test_what_cannot_be_read_is_told_in_the_same_words_and_disturbs_no_other(store: Counting) -> None:
    serve(store, "1", "good")
    store.put(serving_path("bad"), b'{"stable":"1","share":7}\n')
    records = ServingRecords(store)
    found = [records.read() for _ in range(3)]
    assert found == [found[0]] * 3
    assert found[0]["good"] == Serving(stable="1")
    assert "models/bad/serving.json" in str(found[0]["bad"])
    assert "share" in str(found[0]["bad"])
    assert store.checked == 2
    serve(store, "3", "bad")
    assert records.read()["bad"] == Serving(stable="3")


def test_a_store_that_is_away_says_nothing_of_what_is_served(store: Counting) -> None:
    serve(store, "1", "one")
    records = ServingRecords(store)
    records.read()
    store.away = True
    with pytest.raises(StoreUnavailable):
        records.read()


def test_a_model_that_is_served_no_more_is_not_among_them(store: Counting) -> None:
    serve(store, "1", "one")
    records = ServingRecords(store)
    records.read()
    store.delete(serving_path("one"))
    assert records.read() == {}
