"""Overhead and factors are found from the buckets that ran, and say what the others take."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.scheduling.published import DOUBT, DOUBT_MAX, DOUBT_MIN, Published, Took, sane_us

PUBLISHED_US = (50.0, 120.0, 400.0, 2000.0, 9000.0, 40000.0)


def ran(overhead_us, factor, *, noise=0.0, of=PUBLISHED_US, count=5, seed=1, model="m"):
    chance = random.Random(seed)
    return [
        Took(model, us, [(overhead_us + us * factor) * math.exp(chance.gauss(0, noise)) for _ in range(count)])
        for us in of
    ]


@pytest.mark.parametrize("overhead_us", [20.0, 60.0, 256.0, 900.0, 4000.0])
@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_what_ran_says_what_the_others_take(overhead_us, factor):
    published = Published(256.0)
    published.fit(ran(overhead_us, factor, noise=0.05))
    for us in (70.0, 1000.0, 20000.0):
        assert published.assumed_us("m", us) == pytest.approx(overhead_us + us * factor, rel=0.35)


def test_until_something_ran_the_assumed_overhead_is_added_and_much_doubted():
    published = Published(100.0)
    assert published.assumed_us("m", 50.0) == 150.0
    assert published.doubt("m") == DOUBT == math.log(3.0)


def test_a_small_bucket_alone_speaks_of_the_overhead_and_a_large_one_of_the_factor():
    small, large = Published(256.0), Published(256.0)
    small.fit(ran(1000.0, 1.0, of=(20.0,)))
    assert small.assumed_us("m", 20.0) == pytest.approx(1020.0, rel=0.1)
    assert small.assumed_us("m", 40_000.0) == pytest.approx(41_000.0, rel=0.1)
    large.fit(ran(256.0, 3.0, of=(20_000.0,)))
    assert large.assumed_us("m", 10_000.0) == pytest.approx(30_256.0, rel=0.1)
    assert large.assumed_us("m", 20.0) == pytest.approx(316.0, rel=0.1)


def test_a_few_buckets_with_some_noise_do_not_invent_another_overhead():
    for seed in range(20):
        published = Published(256.0)
        published.fit(ran(256.0, 1.0, noise=0.1, of=PUBLISHED_US[:4], count=1, seed=seed))
        assert published.assumed_us("m", 40.0) == pytest.approx(296.0, rel=0.4)
        assert published.assumed_us("m", 40_000.0) == pytest.approx(40_256.0, rel=0.4)


@given(st.lists(st.floats(-7, 7), min_size=2, max_size=2))
def test_two_of_six_measured_wrongly_do_not_disturb_the_others(wrong):
    took = ran(256.0, 2.0)
    for place, error in zip((1, 4), wrong, strict=True):
        took[place] = replace(took[place], times_us=[time_us * math.exp(error) for time_us in took[place].times_us])
    published = Published(256.0)
    published.fit(took)
    for us in PUBLISHED_US:
        assert published.assumed_us("m", us) == pytest.approx(256.0 + us * 2.0, rel=0.5)


def test_how_far_to_be_doubted_follows_from_how_well_they_agree():
    exact, rough, wild = Published(256.0), Published(256.0), Published(256.0)
    exact.fit(ran(256.0, 3.0))
    rough.fit(ran(256.0, 3.0, noise=0.3, count=1))
    wild.fit(ran(256.0, 3.0, noise=3.0, count=1))
    assert exact.doubt("m") == DOUBT_MIN < rough.doubt("m") < wild.doubt("m") <= DOUBT_MAX
    few = Published(256.0)
    few.fit(ran(256.0, 3.0, of=(50.0, 4000.0)))
    assert few.doubt("m") == DOUBT


def test_models_that_were_measured_at_different_times_are_wrong_by_factors_of_their_own():
    published = Published(256.0)
    published.fit(ran(500.0, 0.05, model="busy") + ran(500.0, 1.0, model="m"))
    for us in (100.0, 5000.0):
        assert published.assumed_us("busy", us) == pytest.approx(500.0 + us / 20.0, rel=0.2)
        assert published.assumed_us("m", us) == pytest.approx(500.0 + us, rel=0.2)


def test_a_model_that_never_ran_is_believed_until_three_others_agree_that_the_machine_is_another_one():
    published = Published(256.0)
    published.fit(ran(256.0, 20.0, model="busy"))
    assert published.assumed_us("new", 5000.0) == pytest.approx(5256.0)
    published.fit(ran(256.0, 4.0, model="m"))
    assert published.assumed_us("new", 5000.0) == pytest.approx(256.0 + 2.0 * 5000.0)
    published.fit(ran(256.0, 4.0, model="n"))
    assert published.assumed_us("new", 5000.0) == pytest.approx(256.0 + 4.0 * 5000.0)
    assert published.doubt("m") < published.doubt("new") == DOUBT


def test_a_model_keeps_its_factor_while_others_run():
    published = Published(256.0)
    published.fit(ran(256.0, 20.0))
    published.fit(ran(256.0, 1.0, model="n"))
    assert published.assumed_us("m", 5000.0) == pytest.approx(100_256.0)
    assert published.doubt("m") == DOUBT_MIN


def test_two_batches_do_not_outweigh_what_was_measured_and_a_bucket_that_is_known_does():
    others = ran(256.0, 1.0, model="n")
    published = Published(256.0)
    published.fit(others + ran(256.0, 40.0, count=2, of=(2000.0,)))
    assert published.assumed_us("m", 5000.0) == pytest.approx(5256.0)
    published.fit(others + [replace(one, weight=5.0) for one in ran(256.0, 40.0, count=1, of=(2000.0,))])
    assert published.assumed_us("m", 5000.0) == pytest.approx(200_256.0)


@pytest.mark.parametrize("us", [-1e308, -1.0, 0.0, 5e-324, 1e308, math.inf])
def test_no_time_that_a_file_or_a_clock_could_say_breaks_it(us):
    assert 0.0 < sane_us(us) < math.inf
    published = Published(256.0)
    published.fit([Took("m", us, [sane_us(us)], 5.0), Took("m", 1.0, [1e12], 5.0), Took("m", 1e12, [0.1], 5.0)])
    for model in ("m", "n"):
        assert 0.0 < published.assumed_us(model, us) < math.inf
