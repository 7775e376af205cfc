"""Delays grow, and stay finite however long something keeps dying."""

import pytest

from warmpool.backoff import backoff_s


@pytest.mark.parametrize(
    ("deaths", "expected_s"), [(0, 0.0), (1, 0.1), (2, 0.2), (5, 1.6), (6, 3.2), (7, 5.0), (10_000, 5.0)]
)
def test_the_delay_doubles_from_the_first_to_the_largest(deaths, expected_s):
    assert backoff_s(deaths, 0.1, 5.0) == pytest.approx(expected_s)
