"""Which missing executable is made next."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.compiling.made_up import as_found, gap
from warmpool.compiling.gaps import Gap
from warmpool.compiling.order import PLACES_MAX, UNCOVERED_US, Demand, costs_us, jobs_of, ranked

sizes = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 16))
needs = st.lists(st.tuples(st.tuples(st.integers(1, 20), st.integers(1, 20)), st.floats(0.5, 100)), max_size=6)


def order(gaps, *, warm=(), sent=()):
    """Sizes of seq, or (batch, seq), in the order in which they are made."""
    demand = Demand(
        [{"batch": batch, "seq": seq} for batch, seq in warm],
        [({"batch": batch, "seq": seq}, count) for (batch, seq), count in sent],
    )
    return [one.gap for one in ranked(gaps, {one.side: demand for one in gaps})]


def test_coarse_comes_before_fine_where_all_sizes_are_sent_as_often():
    """From 16 the half is nearest to what it gains most on, then the quarter, then what is left between."""
    gaps = [gap(seq=size) for size in range(1, 16)]
    sent = [((1, size), 1.0) for size in range(1, 17)]
    found = [one.bucket["seq"] for one in order(gaps, warm=[(1, 16)], sent=sent)]
    assert found[0] == 8
    assert set(found[1:3]) == {4, 12}


def test_what_nothing_covers_comes_before_what_only_gets_cheaper():
    gaps = [gap(seq=4), gap(seq=16)]
    sent = [((1, 4), 1e4), ((1, 16), 1.0)]
    assert [one.bucket["seq"] for one in order(gaps, warm=[(1, 8)], sent=sent)] == [16, 4]


def test_the_most_used_comes_first():
    gaps = [gap(seq=4), gap(seq=8), gap(seq=12)]
    assert order(gaps, warm=[(1, 16)], sent=[((1, 12), 100.0), ((1, 4), 1.0)])[0].bucket["seq"] == 12


def test_a_bucket_of_more_rows_is_worth_as_much_as_the_runs_that_it_saves():
    gaps = [gap(8, 16), gap(1, 8)]
    assert order(gaps, warm=[(1, 16)], sent=[((8, 16), 10.0), ((1, 8), 1.0)])[0] == gaps[0]
    assert order(gaps, warm=[(1, 16)], sent=[((8, 16), 1.0), ((1, 8), 1000.0)])[0] == gaps[1]


def test_minimum_sets_come_first_and_the_cpu_lanes_after_the_primarys():
    gaps = [
        gap(8, 16),
        gap(8, 16, ladder=True),
        gap(1, 16, ladder=True, minimum=True),
        gap(1, 16, minimum=True),
    ]
    assert order(gaps, sent=[((8, 16), 1e6)]) == [gaps[3], gaps[2], gaps[0], gaps[1]]


def test_without_any_traffic_coarse_ones_come_first_too():
    gaps = [gap(seq=size) for size in (4, 8, 16)]
    assert [one.bucket["seq"] for one in order(gaps)] == [16, 8, 4]


def test_of_two_models_the_one_that_gains_more_time_comes_first():
    slow, fast = gap(seq=8, model="slow", us_an_element=100.0), gap(seq=8, model="fast", us_an_element=1.0)
    assert order([fast, slow], warm=[(1, 16)], sent=[((1, 8), 1.0)]) == [slow, fast]


@given(st.sets(sizes, min_size=1, max_size=8), st.sets(sizes, max_size=2), needs)
def test_every_gap_is_made_once_and_none_gains_more_than_one_before_it(missing, warm, sent):
    gaps = [gap(*one) for one in missing]
    demand = Demand(
        [{"batch": batch, "seq": seq} for batch, seq in warm],
        [({"batch": batch, "seq": seq}, count) for (batch, seq), count in sent],
    )
    found = ranked(gaps, {gaps[0].side: demand})
    assert sorted(one.gap.key for one in found) == sorted(one.key for one in gaps)
    gains = [one.gain_us for one in found]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) >= 0.0


def cost_us(bucket, need, batch, us):
    """What one need takes on one bucket."""
    return float(costs_us([bucket], [need], batch, us)[0, 0])


def total_us(buckets, sent):
    """What all that was sent takes on these buckets."""
    uncovered = ((need, UNCOVERED_US * need["batch"]) for need, _ in sent)
    costs = (min([most, *(cost_us(one, need, "batch", 1.0) for one in buckets)]) for need, most in uncovered)
    return sum(cost * count for cost, (_, count) in zip(costs, sent, strict=True))


@given(st.sets(sizes, min_size=2, max_size=6), needs.filter(bool), st.integers(1, 3))
def test_the_first_ones_gain_at_least_what_the_theorem_says_of_the_best_choice_of_as_many(missing, sent, count):
    gaps = [gap(*one) for one in sorted(missing)]
    named = [({"batch": batch, "seq": seq}, weight) for (batch, seq), weight in sent]
    first = [one.bucket for one in order(gaps, sent=sent)[:count]]
    at_first = total_us([], named)
    best = max(
        at_first - total_us([one.bucket for one in some], named)
        for some in itertools.combinations(gaps, min(count, len(gaps)))
    )
    assert at_first - total_us(first, named) >= (1 - 1 / math.e) * best * (1 - 1e-6)


def test_of_very_many_the_last_ones_are_in_order_of_what_they_would_gain_after_the_first():
    gaps = [gap(batch, seq) for batch in range(1, 11) for seq in range(1, 16)]
    found = ranked(gaps, {gaps[0].side: Demand([{"batch": 1, "seq": 16}], [({"batch": 10, "seq": 15}, 1.0)])})
    assert sorted(one.gap.key for one in found) == sorted(one.key for one in gaps)
    assert found[0].gap.bucket == {"batch": 10, "seq": 15}
    gains = [one.gain_us for one in found]
    assert gains == sorted(gains, reverse=True)


@given(sizes, st.tuples(st.integers(1, 40), st.integers(1, 20)))
def test_a_need_costs_the_runs_that_its_rows_take_and_nothing_covers_a_longer_one(bucket, need):
    found = cost_us({"batch": bucket[0], "seq": bucket[1]}, {"batch": need[0], "seq": need[1]}, "batch", 2.0)
    runs = -(-need[0] // bucket[0])
    assert found == (runs * (100.0 + 2.0 * bucket[0] * bucket[1]) if need[1] <= bucket[1] else math.inf)


def test_a_method_without_a_batch_costs_one_run():
    assert cost_us({"length": 10}, {"length": 4}, "", 1.0) == 110.0
    assert cost_us({}, {}, "", 1.0) == 101.0


def test_a_minimum_set_is_one_job_and_what_shares_references_is_another():
    minimum = [gap(1, 16, minimum=True), gap(1, 16, method="other", minimum=True)]
    shared = [gap(batch, 8) for batch in (4, 1, 8, 2)]
    rest = [gap(2, 4)]
    jobs = jobs_of(as_found(*minimum, shared[0], rest[0], *shared[1:]), at_a_time=1)
    assert jobs == [minimum, shared, rest]


def test_spare_cores_get_work_that_shares_nothing():
    gaps = [gap(2, 4), gap(2, 8), gap(2, 12), gap(2, 16)]
    assert jobs_of(as_found(*gaps), at_a_time=3) == [gaps[:3], gaps[3:]]


def test_a_job_is_bounded():
    gaps = [gap(batch, 8) for batch in range(1, 21)]
    assert max(map(len, jobs_of(as_found(*gaps), at_a_time=1))) == PLACES_MAX


def test_what_may_do_harm_is_made_alone_and_last():
    gaps = [gap(batch, 8) for batch in (1, 2, 4, 8)]
    jobs = jobs_of(as_found(*gaps), at_a_time=2, alone={gaps[0].key, gaps[2].key})
    assert jobs == [[gaps[1], gaps[3]], [gaps[0]], [gaps[2]]]


@given(st.data(), st.integers(1, 5))
def test_every_gap_is_in_one_job_and_a_job_is_of_one_target_and_lane(data, at_a_time):
    some = st.builds(
        gap,
        st.sampled_from([1, 2, 4]),
        st.sampled_from([4, 8]),
        version=st.sampled_from("12"),
        ladder=st.booleans(),
        minimum=st.booleans(),
        method=st.sampled_from(["predict", "other"]),
    )
    gaps: list[Gap] = data.draw(st.lists(some, max_size=20, unique_by=lambda one: (one.identity, one.ladder)))
    jobs = jobs_of(as_found(*gaps), at_a_time)
    assert sorted(map(repr, itertools.chain(*jobs))) == sorted(map(repr, gaps))
    for job in jobs:
        assert len({(one.target, one.ladder) for one in job}) == 1


@pytest.mark.parametrize("count", [1, 200])
def test_only_the_most_frequent_shapes_are_looked_at(count):
    """Else a method with two thousand of them would take seconds."""
    sent = [((1, 3), 1000.0), *(((1, 7 + index % 2), 1.0) for index in range(count))]
    assert order([gap(seq=4), gap(seq=8)], warm=[(1, 16)], sent=sent)[0].bucket["seq"] == 4
