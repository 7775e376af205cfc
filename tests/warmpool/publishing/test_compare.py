"""What a tolerance allows, and what no tolerance does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from warmpool.manifest import ToleranceSpec
from warmpool.publishing.compare import difference, nowhere_a_number, same_bits

TOLERANCE = ToleranceSpec(rtol=1e-5, atol=1e-5)

FINITE = st.floats(-1e6, 1e6)


@given(FINITE, FINITE)
def test_a_difference_within_the_tolerance_is_one_by_its_definition(found: float, wanted: float) -> None:
    result = difference(np.array([found]), np.array([wanted]), TOLERANCE)
    assert result.error_max == abs(found - wanted)
    assert result.within == (abs(found - wanted) <= TOLERANCE.atol + TOLERANCE.rtol * abs(wanted))


SPECIAL = [np.nan, np.inf, -np.inf, 1.0]


@pytest.mark.parametrize("found", SPECIAL)
@pytest.mark.parametrize("wanted", SPECIAL)
def test_what_is_not_finite_is_equal_only_to_itself(found: float, wanted: float) -> None:
    wide = ToleranceSpec(rtol=1e9, atol=1e9)
    same = found == wanted or (np.isnan(found) and np.isnan(wanted))
    assert difference(np.array([found, 2.0]), np.array([wanted, 2.0]), wide).within == same


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float32)),
        (np.zeros(3, np.float32), np.zeros((3, 1), np.float32)),
        (np.zeros(3, np.float32), np.zeros(3, np.float16)),
        (np.array([1], np.int32), np.array([2], np.int32)),
        (np.array([True]), np.array([False])),
    ],
)
def test_another_shape_dtype_or_integer_is_a_difference(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    assert not difference(found, wanted, TOLERANCE).within


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (np.array([1_000_001], np.int32), np.array([1_000_000], np.int32)),
        (np.array([2**32 - 1], np.uint32), np.array([2**32 - 2], np.uint32)),
        (np.array([100], np.int8), np.array([101], np.int8)),
        (np.array([True]), np.array([False])),
    ],
)
def test_a_tolerance_is_not_for_integers_and_bools(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    wide = ToleranceSpec(rtol=1.0, atol=1.0)
    assert not difference(found, wanted, wide).within
    assert difference(found, wanted, wide).error_max == 1.0
    assert difference(wanted, wanted, wide).within


def test_empty_tensors_agree() -> None:
    assert difference(np.zeros((0, 3)), np.zeros((0, 3)), TOLERANCE).within


def test_a_tolerance_of_zero_asks_for_the_same_numbers() -> None:
    exact = ToleranceSpec(rtol=0.0, atol=0.0)
    assert difference(np.array([1.0]), np.array([1.0]), exact).within
    assert not difference(np.array([1.0]), np.array([1.0 + 1e-12]), exact).within


def test_only_an_output_that_is_nan_in_every_result_is_nowhere_a_number() -> None:
    nan, number, whole = np.full(2, np.nan), np.array([np.nan, 1.0]), np.array([1, 2])
    assert nowhere_a_number([[nan, nan, whole], [nan, number, whole]]) == [0]


def test_same_bits_are_equal_beyond_any_tolerance() -> None:
    one = np.array([1.0, np.nan, 0.0], np.float32)
    assert same_bits(one, np.array([1.0, np.nan, -0.0], np.float32))
    assert not same_bits(one, np.nextafter(one, np.float32(2)))
    assert same_bits(np.array([True]), np.array([True]))
