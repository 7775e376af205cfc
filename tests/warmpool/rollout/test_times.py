"""Times on their scale, against the plain definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.rollout.times import STEPS_A_DOUBLING, Times

EXPONENTS = st.lists(st.integers(0, 60), min_size=1, max_size=20)


def of(steps: list[int]) -> Times:
    times = Times()
    for step in steps:
        times.add(2 ** ((step + 0.5) / STEPS_A_DOUBLING))
    return times


@given(EXPONENTS, EXPONENTS, st.integers(0, 10))
def test_who_is_later_is_what_a_look_at_all_pairs_says(mine: list[int], theirs: list[int], slack: int) -> None:
    pairs = [float(np.sign(one - slack - other)) for one in mine for other in theirs]
    assert of(mine).later_than(of(theirs), slack) == pytest.approx(sum(pairs) / len(pairs))


@given(EXPONENTS, st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_a_quantile_is_the_upper_end_of_the_step_it_lies_in(steps: list[int], share: float) -> None:
    wanted = sorted(steps)[max(0, math.ceil(share * len(steps)) - 1)]
    assert of(steps).quantile_us(share) == pytest.approx(2 ** ((wanted + 1) / STEPS_A_DOUBLING))


@given(EXPONENTS, EXPONENTS)
def test_merged_times_are_all_of_them(mine: list[int], theirs: list[int]) -> None:
    merged = of(mine)
    merged.merge(of(theirs))
    both = of(mine + theirs)
    assert merged.total == both.total
    assert [merged.quantile_us(share / 10) for share in range(11)] == [
        both.quantile_us(share / 10) for share in range(11)
    ]


def test_above_counts_what_lies_beyond_the_bound_s_step() -> None:
    assert of([0, 8, 9, 30]).above(2 ** (8.5 / STEPS_A_DOUBLING)) == 2


def test_no_times_have_no_quantile_and_less_than_a_microsecond_is_one() -> None:
    times = Times()
    assert times.quantile_us(0.5) == 0.0
    times.add(0.0)
    times.add(-5.0)  # a clock was set back
    assert times.quantile_us(1.0) == pytest.approx(2 ** (1 / STEPS_A_DOUBLING))
