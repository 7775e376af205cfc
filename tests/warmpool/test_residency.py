"""What stays in a lane's memory: within its budget, least valuable first, nothing that is busy, and no thrashing."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warmpool.loaders import LOADERS
from warmpool.residency import (
    GAIN,
    HALF_LIFE,
    LOAD_US,
    RUNS_AT_ONCE_MAX,
    UNUSED_S_MAX,
    Footprint,
    Residency,
    Tally,
)

LOAD_S = LOAD_US * 1e-6
WEIGHTS = {"a/1": 100, "b/1": 40, "c/1": 0}

footprints = st.builds(
    Footprint,
    version=st.sampled_from([*WEIGHTS]),
    held_bytes=st.integers(1, 30),
    run_bytes=st.integers(0, 20),
    minimum=st.booleans(),
)
plans = st.lists(footprints, min_size=1, max_size=12)


def resident(bytes_max, *plan, weights=WEIGHTS):
    """A residency of these, numbered from 0, and what of them is held at the start."""
    made = Residency(bytes_max)
    made.plan(dict(enumerate(plan)), weights)
    return made, made.admit(range(len(plan)))


def equal(count, held_bytes=10, version="c/1", **more):
    return [Footprint(version, held_bytes, 0, **more) for _ in range(count)]


def taken(numbers, plan):
    """What a set takes, the long way: code, weights once, and the largest runs at once."""
    chosen = [plan[number] for number in numbers]
    weights = sum(WEIGHTS[version] for version in {one.version for one in chosen})
    runs = sum(sorted((one.run_bytes for one in chosen), reverse=True)[:RUNS_AT_ONCE_MAX])
    return weights + sum(one.held_bytes for one in chosen) + runs


# Bytes


def test_as_many_run_at_once_as_a_lane_has_loaders_and_one_batch():
    assert RUNS_AT_ONCE_MAX == LOADERS + 1


@given(plans, st.data())
def test_a_tally_is_the_sum_whatever_came_and_went(plan, data):
    tally, numbers = Tally(WEIGHTS), set[int]()
    for number in data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=20)):
        if number in numbers:
            tally.remove(plan[number])
        else:
            tally.add(plan[number])
        numbers ^= {number}
        assert tally.bytes == taken(numbers, plan)


@given(plans, st.integers(1, 400))
def test_what_is_held_at_the_start_is_within_the_budget_and_nothing_more_would_fit(plan, bytes_max):
    made, held = resident(bytes_max, *plan)
    assert made.held == held
    assert made.held_bytes == taken(held, plan) <= bytes_max
    for number in range(len(plan)):
        assert number in held or taken({*held, number}, plan) > bytes_max
    assert made.tight == (taken(range(len(plan)), plan) > bytes_max)


@given(plans, st.integers(1, 400))
def test_minimum_sets_are_held_from_the_start_if_all_of_them_fit_and_then_they_are_pinned(plan, bytes_max):
    made, held = resident(bytes_max, *plan)
    minimum = {number for number, one in enumerate(plan) if one.minimum}
    fits = taken(minimum, plan) <= bytes_max
    assert made.pinned == (minimum if fits else set())
    assert made.pinned <= held
    assert made.impossible == {
        number
        for number in range(len(plan))
        if number not in made.pinned and taken({*made.pinned, number}, plan) > bytes_max
    }


@given(plans)
def test_without_a_budget_everything_is_held(plan):
    made, held = resident(0, *plan)
    assert held == set(range(len(plan)))
    assert (made.tight, made.impossible) == (False, set())


def test_the_minimum_sets_come_first_and_then_the_load_order_as_far_as_it_goes():
    plan = [*equal(3), *equal(2, minimum=True)]
    assert resident(40, *plan)[1] == {3, 4, 0, 1}


def test_weights_that_do_not_fit_keep_their_executables_out_and_the_others_come():
    plan = [Footprint("a/1", 10, 0, minimum=True), Footprint("b/1", 10, 0, minimum=True), *equal(2)]
    made, held = resident(150, *plan)
    assert held == {0, 2, 3}
    assert made.pinned == set(), "both models together are too large"
    assert made.impossible == set(), "each alone is not"
    assert made.room_for(1, (), 0.0) == [0], "with its weights, which nothing else needs"


# Who goes


@settings(max_examples=300)
@given(plans, st.integers(1, 400), st.data())
def test_whoever_comes_the_budget_is_kept_and_neither_what_is_busy_nor_what_is_pinned_goes(plan, bytes_max, data):
    made, _ = resident(bytes_max, *plan)
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now_s += data.draw(st.sampled_from([0.0, 0.5, 30.0]))
        gone = sorted(set(range(len(plan))) - made.held - made.impossible)
        if made.held and data.draw(st.booleans()):
            one = data.draw(st.sampled_from(sorted(made.held)))
            made.used(one, data.draw(st.sampled_from([None, 0.0, 1e5])), now_s)
        if not gone:
            continue
        number = data.draw(st.sampled_from(gone))
        busy = data.draw(st.sets(st.sampled_from(sorted(made.held) or [0])))
        going = made.room_for(number, busy, now_s)
        if going is None:
            stuck = made.pinned | busy | {one for one in made.held if made.kept_until_s(now_s) < math.inf}
            assert taken({*stuck & made.held, number}, plan) > bytes_max or made.kept_until_s(now_s) < math.inf
            continue
        assert not set(going) & (made.pinned | busy)
        assert set(going) <= made.held
        for one in going:  # nothing goes needlessly
            assert taken({*made.held - set(going), number, one}, plan) > bytes_max
        made.bring(number, going, asked=data.draw(st.booleans()))
        made.loaded(number, LOAD_US, now_s)
        assert made.held_bytes == taken(made.held, plan) <= bytes_max


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), min_size=2, max_size=8), st.data())
def test_what_is_worth_least_a_byte_goes_first(held, data):
    """Of executables that share no weights: everything that stays and could go is worth at least as much a byte."""
    plan = [Footprint("c/1", size, 0) for size, _ in held]
    newcomer = Footprint("c/1", data.draw(st.integers(1, sum(size for size, _ in held))), 0)
    bytes_max = sum(size for size, _ in held)
    made, at_start = resident(bytes_max, *plan, newcomer)
    assume(at_start == set(range(len(plan))))
    for number, (_, saved) in enumerate(held):
        made.used(number, float(saved), 1.0)
    going = made.room_for(len(plan), (), 1.0)
    assert going is not None
    worth = {number: saved / size for number, (size, saved) in enumerate(held)}
    assert going == sorted(going, key=lambda number: worth[number])
    needless = bytes_max - newcomer.held_bytes  # a smaller one that went late may stay, so only whole prefixes count
    for one, other in combinations(range(len(plan)), 2):
        low, high = sorted((one, other), key=lambda number: worth[number])
        if high in going and low not in going and worth[low] < worth[high]:
            staying = sum(plan[number].held_bytes for number in range(len(plan)) if number not in going)
            assert staying + plan[high].held_bytes - plan[low].held_bytes > needless


def test_of_equals_what_was_used_longest_ago_goes_first_and_what_never_was_before_it():
    made, _ = resident(40, *equal(5))
    for number, now_s in ((2, 1.0), (0, 2.0), (3, 3.0)):
        made.used(number, 0.0, now_s)
    order = []
    while made.held:
        going = made.room_for(4, (), 4.0)
        assert going is not None
        (gone,) = going
        order.append(gone)
        made.drop(going)
        made.plan({4: Footprint("c/1", 10 * len(order) + 10, 0)}, {})
        if len(order) == 4:
            break
    assert order == [1, 2, 0, 3]


def test_what_was_saved_counts_half_after_as_many_batches():
    made, _ = resident(30, *equal(4))
    made.used(0, 100.0, 0.0)
    for _ in range(HALF_LIFE - 1):
        made.used(2, 1e9, 0.0)
    made.used(1, 49.0, 0.0)
    assert made.room_for(3, (), 0.0) == [1]
    made.used(1, 2.0, 0.0)
    assert made.room_for(3, (), 0.0) == [0]
    assert made.room_for(3, (), 1e9) == [0], "time alone changes nothing"


def test_what_nothing_else_could_have_run_saved_a_load():
    made, _ = resident(20, *equal(3))
    made.loaded(0, 5000.0, 0.0)
    made.used(0, None, 0.0)
    made.used(1, 4900.0, 0.0)
    assert made.room_for(2, (), 0.0) == [1]


def test_one_large_one_that_had_to_go_lets_those_stay_that_were_to_go_before_it():
    made, _ = resident(70, *equal(3), *equal(1, held_bytes=40), *equal(1, held_bytes=40))
    made.used(3, 1000.0, 0.0)  # 25 a byte
    made.used(2, 500.0, 0.0)  # 50 a byte
    assert made.room_for(4, (), 0.0) == [3]


# Who stays a while


def test_what_somebody_waits_for_stays_until_it_ran_and_then_as_long_as_its_load_took():
    made, _ = resident(10, *equal(2))
    made.bring(1, [0], asked=True)
    assert made.room_for(0, (), 100.0) is None
    made.loaded(1, 3e6, 100.0)
    assert made.room_for(0, (), 100.0 + UNUSED_S_MAX - 0.01) is None
    assert made.kept_until_s(100.0) == 100.0 + UNUSED_S_MAX
    made.used(1, None, 100.5)
    assert made.kept_until_s(100.5) == 103.5
    assert made.room_for(0, (), 103.4) is None
    assert made.room_for(0, (), 103.5) == [1]
    assert made.kept_until_s(103.5) == math.inf


def test_what_nobody_waits_for_any_more_goes_all_the_same():
    made, _ = resident(10, *equal(2))
    made.bring(1, [0], asked=True)
    made.loaded(1, 1e4, 5.0)
    assert made.room_for(0, (), 5.0 + UNUSED_S_MAX) == [1]


# Who comes back unasked


def test_nothing_comes_back_before_it_would_have_saved_twice_its_load():
    made, _ = resident(10, *equal(2))
    for _ in range(4):
        made.missed(1, GAIN * LOAD_US / 4 - 1)
    assert made.returns(1, (), 0.0) is None
    made.missed(1, 4.0)
    assert made.returns(1, (), 0.0) == [0]


def test_what_came_back_and_went_again_has_to_be_missed_anew():
    made, _ = resident(10, *equal(2))
    made.missed(1, GAIN * LOAD_US)
    made.bring(1, [0], asked=False)
    made.bring(0, [1], asked=False)
    made.missed(1, 1.0)
    assert made.returns(1, (), 0.0) is None


def test_nothing_comes_back_for_what_is_worth_half_of_it_or_more():
    made, _ = resident(10, *equal(2))
    made.used(0, 1e6, 0.0)
    made.missed(1, GAIN * 0.9e6)
    assert made.returns(1, (), 0.0) is None
    made.missed(1, GAIN * 0.2e6)
    assert made.returns(1, (), 0.0) == [0]
    assert made.returns(1, {0}, 0.0) is None, "it is busy"


def test_what_only_runs_in_the_place_of_what_comes_back_is_no_loss():
    """Each batch saves 50 ms with the one that is there, and would save 20 more with the other."""
    made, _ = resident(10, *equal(2))
    for turn in range(20):
        saved_us = made.used(0, 50e3, 0.0)
        made.missed(1, 20e3, instead=0, instead_us=saved_us)
        assert (made.returns(1, (), 0.0) == [0]) == (turn > 0), "as soon as it is paid for"
    made.used(0, 500e3, 0.0)
    assert made.returns(1, (), 0.0) is None, "it is needed for something else, too"


def played(turns, saved_us):
    """How often something came unasked, while only one of two fits beside a third that covers what they are for.

    `turns` are their numbers, 1 or 2; each is faster than the third by so much.
    """
    made, _ = resident(20, *equal(1, minimum=True), *equal(2))
    assert made.held == {0, 1}
    came = 0
    for number in turns:
        if number in made.held:
            made.used(number, saved_us, 0.0)
            continue
        made.missed(number, saved_us)
        going = made.returns(number, (), 0.0)
        if going is not None:
            made.bring(number, going, asked=False)
            came += 1
    return came


@pytest.mark.parametrize("saved_us", [10.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("period", [1, 2, 10, 50])
def test_traffic_that_alternates_does_not_thrash(saved_us, period):
    """However much each would save: none comes but one at the beginning, when nothing is known yet."""
    assert played([1 + turn // period % 2 for turn in range(40 * period)], saved_us) <= 1


def test_traffic_that_moved_is_followed_within_a_few_half_lives():
    assert played([1] * 1000 + [2] * 2 * HALF_LIFE, 1e4) == 1
    assert played([1] * 1000 + [2] * 2 * HALF_LIFE + [1] * 2 * HALF_LIFE, 1e4) == 2


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1e5)), min_size=20, max_size=200),
    st.integers(1, 4),
)
def test_whatever_the_traffic_a_return_was_missed_for_twice_its_price(traffic, room):
    made, _ = resident(10 + 10 * room, *equal(1, minimum=True), *equal(5))
    missed, loads_us = dict.fromkeys(range(6), 0.0), 0.0
    for number, saved_us in traffic:
        if number in made.held:
            made.used(number, saved_us, 0.0)
            continue
        made.missed(number, saved_us)
        missed[number] += saved_us
        going = made.returns(number, (), 0.0)
        if going is not None:
            assert missed[number] >= GAIN * LOAD_US
            missed[number] = 0.0
            made.bring(number, going, asked=False)
            loads_us += LOAD_US
        assert made.held_bytes <= 10 + 10 * room
    assert 0 in made.held
    missed_us = sum(saved_us for _, saved_us in traffic)
    assert loads_us <= missed_us / GAIN


# For good


def test_what_is_retired_makes_room_and_lets_go_of_its_pins():
    plan = [*equal(2, minimum=True), *equal(2)]
    made, held = resident(20, *plan)
    assert (held, made.pinned, made.impossible) == ({0, 1}, {0, 1}, {2, 3})
    made.retire([0])
    assert (made.held, made.pinned, made.impossible) == ({1}, {1}, set())
    assert made.admit([2]) == {2}
    assert made.needed_bytes(3) == 20
    assert made.needs("c/1")
    made.retire([1, 2, 3])
    assert not made.needs("c/1")
    assert made.held_bytes == 0
