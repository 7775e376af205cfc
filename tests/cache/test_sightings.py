"""Which kinds of machine use a store is known for as long as they do, and costs a write a day."""

from __future__ import annotations

import time

import msgspec
import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.sightings import MARK_EVERY_S, Sighting, mark, sightings

CPU = Fingerprint({"platform": "cpu", "jaxlib": "0.12.0"})
TPU = Fingerprint({"platform": "tpu", "jaxlib": "0.12.0"})


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def seen(store, machine, seen_s):
    """As a machine of that kind left it then."""
    sighting = Sighting(ingredients=dict(machine.ingredients), seen_s=seen_s)
    store.put(f"fingerprints/{machine.digest}", msgspec.json.encode(sighting))


def test_nobody_was_seen_in_an_empty_store(store):
    assert sightings(store) == {}


def test_every_kind_of_machine_leaves_its_ingredients_and_the_time(store):
    before_s = time.time()
    for machine in (CPU, TPU):
        mark(store, machine)
    found = sightings(store)
    assert {digest: one.ingredients for digest, one in found.items()} == {
        machine.digest: machine.ingredients for machine in (CPU, TPU)
    }
    assert all(before_s <= one.seen_s <= time.time() for one in found.values())


def test_a_mark_is_written_once_a_day_at_most(store):
    now_s = time.time()
    seen(store, CPU, now_s - MARK_EVERY_S + 60)
    before = store.get(f"fingerprints/{CPU.digest}")
    mark(store, CPU)
    assert store.get(f"fingerprints/{CPU.digest}") == before
    seen(store, CPU, now_s - MARK_EVERY_S - 60)
    mark(store, CPU)
    assert sightings(store)[CPU.digest].seen_s >= now_s
    assert MARK_EVERY_S == 24 * 3600


@pytest.mark.parametrize("ahead_s", [60.0, 1e9, 1e300])
def test_a_mark_of_a_time_to_come_is_written_anew(store, ahead_s):
    """Of a clock that was wrong, or of somebody who would keep a kind of machine about for ever."""
    seen(store, CPU, time.time() + ahead_s)
    mark(store, CPU)
    assert sightings(store)[CPU.digest].seen_s <= time.time()


@pytest.mark.parametrize("written", [b"", b"{", b'{"seen_s": "yesterday"}', b'{"ingredients": {}}'])
def test_a_mark_that_cannot_be_read_is_nobodys_and_is_written_anew(store, written):
    store.put(f"fingerprints/{CPU.digest}", written)
    mark(store, TPU)
    assert set(sightings(store)) == {TPU.digest}
    mark(store, CPU)
    assert set(sightings(store)) == {CPU.digest, TPU.digest}
