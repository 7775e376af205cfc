"""What all tests share: the same examples of properties every time, and which files of tests begin first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(  # no outcome depends on how fast the machine is
    "repeatable", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the most slow tests come first, so that no process is left alone with one in the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
