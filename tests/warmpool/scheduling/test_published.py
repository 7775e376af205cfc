"""Overhead and factor are found from the buckets that ran, and say what the others take."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.scheduling.published import DOUBT, DOUBT_MAX, DOUBT_MIN, Published, Took, log_us

PUBLISHED_US = (50.0, 120.0, 400.0, 2000.0, 9000.0, 40000.0)


def times(overhead_us, factor, *, noise=0.0, of=PUBLISHED_US, count=5, seed=1, model="m"):
    chance = random.Random(seed)
    return [
        Took(model, us, [math.log((overhead_us + us) * factor) + chance.gauss(0, noise) for _ in range(count)])
        for us in of
    ]


@pytest.mark.parametrize("overhead_us", [20.0, 60.0, 256.0, 900.0, 4000.0])
@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_what_ran_says_what_the_others_take(overhead_us, factor):
    published = Published(256.0)
    published.fit(times(overhead_us, factor, noise=0.05))
    for us in (70.0, 1000.0, 20000.0):
        assert math.exp(published.assumed("m", us)) == pytest.approx((overhead_us + us) * factor, rel=0.3)


def test_until_something_ran_the_assumed_overhead_is_added_and_much_doubted():
    published = Published(100.0)
    assert math.exp(published.assumed("m", 50.0)) == pytest.approx(150.0)
    assert published.doubt("m") == DOUBT == math.log(3.0)


@pytest.mark.parametrize("overhead_us", [60.0, 256.0, 900.0])
def test_one_bucket_alone_says_nothing_of_the_overhead(overhead_us):
    """Whatever is assumed could be so: all is put down to the factor."""
    published = Published(overhead_us)
    published.fit(times(500.0, 1.0, of=(100.0,)))
    assert math.exp(published.assumed("m", 100.0)) == pytest.approx(600.0)
    ratio = math.exp(published.assumed("m", 10_000.0) - published.assumed("m", 100.0))
    assert ratio == pytest.approx((overhead_us + 10_000.0) / (overhead_us + 100.0))


def test_a_few_buckets_with_some_noise_do_not_invent_another_overhead():
    for seed in range(20):
        published = Published(256.0)
        published.fit(times(256.0, 1.0, noise=0.1, of=PUBLISHED_US[:4], count=1, seed=seed))
        assert math.exp(published.assumed("m", 40000.0)) == pytest.approx(40256.0, rel=0.4)


@given(st.lists(st.floats(-7, 7), min_size=2, max_size=2))
def test_two_of_six_measured_wrongly_do_not_disturb_the_others(wrong):
    took = times(256.0, 2.0)
    for place, error in zip((1, 4), wrong, strict=True):
        took[place] = replace(took[place], times=[time + error for time in took[place].times])
    published = Published(256.0)
    published.fit(took)
    for us in PUBLISHED_US:
        assert math.exp(published.assumed("m", us)) == pytest.approx((256.0 + us) * 2.0, rel=0.5)


def test_how_far_to_be_doubted_follows_from_how_well_they_agree():
    exact, rough, wild = Published(256.0), Published(256.0), Published(256.0)
    exact.fit(times(256.0, 3.0))
    rough.fit(times(256.0, 3.0, noise=0.2))
    wild.fit(times(256.0, 3.0, noise=2.0))
    assert exact.doubt("m") == DOUBT_MIN < rough.doubt("m") < wild.doubt("m") <= DOUBT_MAX
    few = Published(256.0)
    few.fit(times(256.0, 3.0, of=(50.0,)))
    assert few.doubt("m") == DOUBT


def test_models_that_were_measured_at_different_times_are_wrong_by_factors_of_their_own():
    published = Published(256.0)
    published.fit(times(500.0, 20.0, model="busy") + times(500.0, 1.0, model="m") + times(500.0, 1.1, model="n"))
    assert math.exp(published.assumed("busy", 5000.0)) == pytest.approx(5500.0 * 20.0, rel=0.2)
    assert math.exp(published.assumed("m", 5000.0)) == pytest.approx(5500.0, rel=0.2)
    assert math.exp(published.assumed("another", 5000.0)) == pytest.approx(5500.0 * 1.1, rel=0.2)
    assert published.doubt("m") < published.doubt("another") == DOUBT


def test_a_model_keeps_its_factor_while_others_run():
    published = Published(256.0)
    published.fit(times(256.0, 20.0))
    published.fit(times(256.0, 1.0, model="n"))
    assert math.exp(published.assumed("m", 5000.0)) == pytest.approx(5256.0 * 20.0)
    assert published.doubt("m") == DOUBT_MIN


def test_of_a_model_of_which_too_little_ran_what_the_lane_shows_is_assumed():
    published = Published(256.0)
    published.fit(times(256.0, 2.0, model="n") + times(256.0, 40.0, count=4, of=(100.0,)))
    assert math.exp(published.assumed("m", 5000.0)) == pytest.approx(5256.0 * 2.0)


@pytest.mark.parametrize("us", [-1e308, -1.0, 0.0, 5e-324, 1e308, math.inf])
def test_no_time_that_a_file_or_a_clock_could_say_breaks_it(us):
    assert math.isfinite(log_us(us))
    published = Published(256.0)
    published.fit([Took("m", us, [log_us(us)])])
    assert math.isfinite(published.assumed("m", us))
