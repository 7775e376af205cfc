"""What the tests of stores share: a real server of GCS's protocol, and a new bucket for each test."""

from __future__ import annotations

import itertools

import pytest

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def gcs():
    """A server, in a process of its own."""
    from tests.cache.gcs_server import GcsServer

    with GcsServer() as server:
        yield server


@pytest.fixture
def bucket(gcs):
    """The name of an empty bucket."""
    name = f"bucket-{next(_NUMBERS)}"
    gcs.client().create_bucket(name)
    return name
