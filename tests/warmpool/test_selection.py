"""What is chosen covers what is needed, costs least, and never more than running apart."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.selection import Candidate, cheapest, covers, gather, merged, padding_share, rows_max

BATCHES = (1, 2, 4, 8)
SEQS = (16, 64, 256)

costs = st.floats(1, 1000) | st.integers(1, 5).map(float)  # small integers, so that some tie
plans = st.lists(st.tuples(st.sampled_from(BATCHES), st.sampled_from(SEQS)), unique=True, max_size=12).flatmap(
    lambda buckets: st.tuples(st.just(buckets), st.lists(costs, min_size=len(buckets), max_size=len(buckets)))
)
candidates = plans.map(
    lambda plan: [
        Candidate(number, {"batch": batch, "seq": seq}, cost)
        for number, ((batch, seq), cost) in enumerate(zip(*plan, strict=True))
    ]
)
needs = st.fixed_dictionaries({"batch": st.integers(1, 9), "seq": st.integers(1, 260)})
waitings = st.lists(needs, min_size=1, max_size=12)


def candidate(cost, number=0, **bucket):
    return Candidate(number, bucket, cost)


def test_a_bucket_covers_what_is_no_larger_in_any_dimension():
    bucket = {"batch": 4, "seq": 16}
    assert covers(bucket, {"batch": 4, "seq": 16})
    assert covers(bucket, {"batch": 1, "seq": 1})
    assert covers(bucket, {})
    assert not covers(bucket, {"batch": 5, "seq": 1})
    assert not covers(bucket, {"batch": 1, "seq": 17})
    assert not covers(bucket, {"batch": 1, "length": 1})
    assert covers({}, {})


@given(candidates, needs)
def test_the_cheapest_is_what_trying_all_of_them_finds(plan, need):
    covering = [one for one in plan if one.bucket["batch"] >= need["batch"] and one.bucket["seq"] >= need["seq"]]
    chosen = cheapest(plan, need)
    if not covering:
        assert chosen is None
        return
    assert chosen is not None
    assert chosen in covering
    assert chosen.cost_us == min(one.cost_us for one in covering)


def test_of_equally_cheap_ones_the_smaller_bucket_is_taken_whatever_their_order():
    tied = [candidate(5.0, batch=8, seq=16), candidate(5.0, batch=2, seq=64), candidate(5.0, batch=2, seq=16)]
    for order in itertools.permutations(tied):
        chosen = cheapest(order, {"batch": 1, "seq": 1})
        assert chosen is tied[2]


def test_a_larger_bucket_that_was_measured_to_be_faster_is_taken():
    faster = candidate(9.0, batch=8, seq=16)
    assert cheapest([candidate(10.0, batch=1, seq=16), faster], {"batch": 1, "seq": 10}) is faster


@given(candidates, needs)
def test_the_most_rows_are_the_largest_batch_that_covers_the_rest(plan, need):
    batches = [one.bucket["batch"] for one in plan if one.bucket["seq"] >= need["seq"]]
    most = rows_max(plan, need, "batch")
    assert most == max(batches, default=0)
    if most:
        assert cheapest(plan, need | {"batch": most}) is not None
        assert cheapest(plan, need | {"batch": most + 1}) is None


@given(waitings)
def test_together_rows_add_up_and_other_sizes_are_the_largest(waiting):
    assert merged(waiting, "batch") == {
        "batch": sum(need["batch"] for need in waiting),
        "seq": max(need["seq"] for need in waiting),
    }


@given(candidates, waitings)
def test_a_batch_has_the_first_in_line_is_covered_and_is_predicted_no_dearer_than_its_parts(plan, waiting):
    gathered = gather(waiting, plan, "batch")
    if cheapest(plan, waiting[0]) is None:
        assert gathered is None
        return
    assert gathered is not None
    taken, executable = gathered
    assert taken[0] == 0
    assert taken == sorted(set(taken))
    together = merged([waiting[index] for index in taken], "batch")
    assert covers(executable.bucket, together)
    assert executable is cheapest(plan, together)
    alone = [cheapest(plan, waiting[index]) for index in taken]
    assert executable.cost_us <= sum(one.cost_us for one in alone if one) + 1e-6


@given(candidates, waitings)
def test_no_one_is_left_out_who_would_have_made_the_batch_no_dearer(plan, waiting):
    gathered = gather(waiting, plan, "batch")
    if gathered is None:
        return
    taken, _ = gathered
    for index in sorted({*range(len(waiting))} - {*taken}):
        before = merged([waiting[other] for other in taken if other < index], "batch")
        now, alone = cheapest(plan, before), cheapest(plan, waiting[index])
        with_it = cheapest(plan, merged([before, waiting[index]], "batch"))
        assert now is not None
        assert with_it is None or alone is None or with_it.cost_us > now.cost_us + alone.cost_us


LADDER = [candidate(10.0 + batch, batch, batch=batch) for batch in BATCHES]


@pytest.mark.parametrize(
    ("rows", "taken", "bucket"),
    [
        ([1], [0], 1),
        ([1, 1, 1], [0, 1, 2], 4),
        ([8, 1], [0], 8),
        ([1, 8, 1, 2], [0, 2, 3], 4),
        ([3, 3, 3], [0, 1], 8),
        ([1] * 20, list(range(8)), 8),
    ],
)
def test_a_batch_is_gathered_in_order_up_to_the_largest_bucket(rows, taken, bucket):
    gathered = gather([{"batch": count} for count in rows], LADDER, "batch")
    assert gathered is not None
    assert (gathered[0], gathered[1].bucket["batch"]) == (taken, bucket)


def test_requests_whose_sharing_would_cost_more_run_apart():
    """A short row beside a long one is padded to its length: 300 for both, 10 + 100 apart."""
    dear = [candidate(10.0, batch=1, seq=16), candidate(100.0, batch=1, seq=256), candidate(300.0, batch=2, seq=256)]
    gathered = gather([{"batch": 1, "seq": 10}, {"batch": 1, "seq": 200}], dear, "batch")
    assert gathered is not None
    assert gathered[0] == [0]
    assert gathered[1] is dear[0]


def test_without_a_batch_dimension_the_first_runs_alone():
    only = candidate(5.0, seq=16)
    assert gather([{"seq": 3}, {"seq": 3}], [only], None) == ([0], only)
    assert gather([{}, {}], [candidate(5.0)], None) is not None


def test_nothing_that_covers_the_first_means_no_batch_though_later_ones_could_run():
    assert gather([{"batch": 9}, {"batch": 1}], LADDER, "batch") is None
    assert gather([{"batch": 1}], [], "batch") is None


@pytest.mark.parametrize(("true", "padded", "share"), [(0, 0, 0.0), (5, 5, 0.0), (1, 4, 0.75), (0, 4, 1.0)])
def test_the_share_of_padding(true, padded, share):
    assert padding_share(true, padded) == share
