"""When a missing executable will be warm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.compiling.made_up import gap
from warmpool.compiling.forecast import LOAD_S, CompileTimes, Schedule, scheduled


def is_(one):
    return lambda other: other == one


def test_before_anything_was_made_the_manifest_decides():
    assert CompileTimes().expected_s(gap(prior_s=7.0), first=True) == 7.0


def test_what_a_program_took_decides_and_the_first_of_a_job_is_another_thing():
    times = CompileTimes()
    for _ in range(100):
        times.took(gap(), 8.0, first=True)
        times.took(gap(), 2.0, first=False)
    assert times.expected_s(gap(seq=4), first=True) == pytest.approx(8.0, rel=0.01)
    assert times.expected_s(gap(seq=4), first=False) == pytest.approx(2.0, rel=0.01)


def test_what_was_seen_once_is_a_bound_with_room():
    times = CompileTimes()
    times.took(gap(), 3.0, first=True)
    assert times.expected_s(gap(), first=True) == 6.0


def test_another_program_is_expected_to_differ_from_its_prior_as_the_others_did():
    times = CompileTimes()
    for _ in range(100):
        times.took(gap(prior_s=2.0), 6.0, first=True)
    assert times.expected_s(gap(program="q", prior_s=5.0), first=True) == pytest.approx(15.0, rel=0.01)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_what_is_expected_is_never_less_than_the_mean(took):
    times = CompileTimes()
    for seconds in took:
        times.took(gap(), seconds, first=True)
    assert times.expected_s(gap(), first=True) >= min(took)


def plan(*jobs, took_s=4.0, at_a_time=1, since_s=100.0, begun=False):
    times = CompileTimes()
    for first in (True, False):
        for _ in range(200):
            times.took(gap(), took_s if first else took_s / 4, first=first)
    return scheduled(jobs, times, at_a_time, since_s, begun=begun)


def test_what_comes_later_is_ready_later():
    one, two, three = gap(1), gap(2), gap(4)
    found = plan([one, two], [three])
    ready = [found.ready_in_s(is_(each), 100.0) for each in (one, two, three)]
    assert ready == pytest.approx([4.0 + LOAD_S, 5.0 + LOAD_S, 9.0 + LOAD_S], rel=0.01)
    assert found.over_in_s(100.0) == ready[-1]


def test_several_at_a_time_are_ready_sooner():
    found = plan([gap(1), gap(2), gap(4)], at_a_time=2)
    assert found.over_in_s(100.0) == pytest.approx(4.0 + 2 * 0.5 + LOAD_S, rel=0.01)


def test_a_minimum_set_is_ready_when_its_last_is():
    one, two, after = gap(1, minimum=True), gap(2, minimum=True), gap(4)
    found = plan([one, two], [after])
    ready = [found.ready_in_s(is_(each), 100.0) for each in (one, two, after)]
    assert ready == pytest.approx([5.0 + LOAD_S, 5.0 + LOAD_S, 9.0 + LOAD_S], rel=0.01)
    late_s = found.ready_in_s(is_(one), 110.0)
    assert late_s == pytest.approx(1.0 + 0.25 * 10.0, rel=0.01), "the first one of it took too long already"


def test_of_a_job_of_which_something_was_made_nothing_is_its_first():
    found = plan([gap(1), gap(2)], [gap(4)], begun=True)
    ready = [found.ready_in_s(is_(each), 100.0) for each in (gap(1), gap(2), gap(4))]
    assert ready == pytest.approx([1.0 + LOAD_S, 2.0 + LOAD_S, 6.0 + LOAD_S], rel=0.01)


def test_the_first_that_fits_counts_and_none_is_none():
    found = plan([gap(1), gap(2)])
    assert found.ready_in_s(lambda one: one.bucket["batch"] >= 2, 100.0) == found.ready_in_s(is_(gap(2)), 100.0)
    assert found.ready_in_s(lambda one: one.bucket["batch"] > 2, 100.0) is None
    assert Schedule().over_in_s(5.0) == 0.0


@given(st.floats(0, 1000), st.floats(0, 100))
def test_time_passes_and_what_is_late_is_never_said_to_be_there(passed_s, more_s):
    one, two = gap(1), gap(2)
    found = plan([one], [two])
    first, second = (found.ready_in_s(is_(each), 100.0 + passed_s) for each in (one, two))
    assert first >= 0.0
    assert second - first == pytest.approx(4.0, rel=0.01)
    assert first >= 0.2 * passed_s or passed_s < 5.0
    later = found.ready_in_s(is_(one), 100.0 + passed_s + more_s)
    assert later >= first - more_s - 1e-6
