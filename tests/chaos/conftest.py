"""Chaos is brought upon the instances and stores that the tests of warmpool use."""

import pytest

from benchmarks.gameday.readiness import minimum_sets
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.conftest import fingerprint, own_store, published, tiny_store
from warmpool.survey import survey

__all__ = ["fingerprint", "own_store", "published", "tiny_store"]


@pytest.fixture(scope="session")
def minimum(tiny_store):
    """What an instance has to hold to be ready, whatever becomes of its own copy of the store."""
    return minimum_sets(survey(SignedStore(LocalStore(tiny_store), ANYONE)))
