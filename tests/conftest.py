"""What all tests share: the same examples of properties every time, zygotes, and which files of tests begin first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from tests.shared_zygotes import shared_zygotes

settings.register_profile(  # no outcome depends on how fast the machine is
    "repeatable", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _shared_zygotes():
    with shared_zygotes():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the most slow tests come first, so that no process is left alone with one in the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
