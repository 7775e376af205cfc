from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.fitting.costs import MeasuredCost
from warmpool.fitting.segments import fit_boundaries

SIZES = st.sampled_from([1, 2, 3, 8, 20, 64])
MEASURED = st.dictionaries(st.tuples(SIZES, SIZES), st.floats(1.0, 1e6), min_size=1, max_size=20)


def test_what_was_measured_is_predicted_as_it_was() -> None:
    measured = {(1, 16): 2.0, (1, 64): 5.0, (8, 16): 9.0, (8, 64): 33.0}
    cost = MeasuredCost(measured)
    for bucket, taken in measured.items():
        assert cost(*bucket) == pytest.approx(taken)


def test_between_two_sizes_time_is_a_power_of_the_size() -> None:
    """4 to 64 takes 16 times as long: in proportion; 16 is halfway, in logarithms."""
    assert MeasuredCost({(4,): 10.0, (64,): 160.0})(np.array([8, 16, 32])).tolist() == pytest.approx([20, 40, 80])
    assert MeasuredCost({(4,): 10.0, (64,): 40.0})(16) == pytest.approx(20.0)


def test_two_dimensions_are_interpolated_at_once() -> None:
    measured = {(rows, length): 3.0 * rows**0.5 * length for rows, length in product((1, 16), (4, 64))}
    assert MeasuredCost(measured)(4, 16) == pytest.approx(3.0 * 2 * 16)


def test_below_the_smallest_size_it_falls_as_slowly_as_it_does_anywhere_next_to_it() -> None:
    cost = MeasuredCost({(1, 16): 4.0, (1, 32): 4.0 * 2**0.5, (8, 16): 10.0, (8, 32): 20.0})
    assert cost(1, 4) == pytest.approx(2.0)
    assert cost(8, 4) == pytest.approx(5.0), "by a square root here too, though times double beside it"


def test_where_one_size_was_measured_nothing_is_known_of_others() -> None:
    cost = MeasuredCost({(1, 64): 5.0, (8, 64): 20.0})
    assert cost(1, np.array([2, 64])).tolist() == pytest.approx([5.0, 5.0])


def test_a_bucket_that_is_missing_lies_between_its_neighbours() -> None:
    cost = MeasuredCost({(1, 16): 2.0, (8, 16): 6.0, (8, 64): 24.0})
    assert cost(1, 64) == pytest.approx((2.0 * 24.0) ** 0.5)


@given(MEASURED, st.data())
def test_a_larger_bucket_never_takes_less(measured: dict[tuple[int, int], float], data: st.DataObject) -> None:
    cost = MeasuredCost(measured)
    size = st.integers(1, 80)
    small = data.draw(st.tuples(size, size))
    large = tuple(one + data.draw(st.integers(0, 80)) for one in small)
    assert cost(*small) <= cost(*large) * (1 + 1e-9)
    assert np.isfinite(cost(*large))


@given(MEASURED)
def test_times_that_fall_as_a_size_grows_are_met_in_the_middle(measured: dict[tuple[int, int], float]) -> None:
    """No prediction leaves the range of what was measured, and growing times are kept as they are."""
    cost = MeasuredCost(measured)
    for bucket, taken in measured.items():
        most = max(other for place, other in measured.items() if all(map(int.__le__, place, bucket)))
        least = min(other for place, other in measured.items() if all(map(int.__ge__, place, bucket)))
        assert min(least, taken) * (1 - 1e-9) <= cost(*bucket) <= max(most, taken) * (1 + 1e-9)


def test_it_is_a_cost_that_boundaries_are_fitted_with() -> None:
    """Every call takes 100 us at least, so small sizes are not worth a bucket of their own."""
    cost = MeasuredCost({(1,): 100.0, (32,): 101.0, (1024,): 3200.0})
    values = [1, 2, 4, 8, 500, 700, 1000]
    assert fit_boundaries(values, [1] * 7, 4, cost) == (8, 500, 700, 1000)


@pytest.mark.parametrize(
    ("measured", "message"),
    [({}, "no run time was measured"), ({(1,): 0.0}, "a run took 0.0 us"), ({(1,): float("inf")}, "a run took inf")],
)
def test_what_is_not_allowed_is_named(measured: dict[tuple[int, ...], float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeasuredCost(measured)
