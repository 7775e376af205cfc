"""Which step a request is said to have taken, and when it is told to come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.served import doubling
from warmpool.errors import NotWarm
from warmpool.fallback import FALLEN, RETRY_S_MAX, RETRY_S_MIN, Step, StepCounts, refusal, retry_after_s, together

DOUBLE = doubling()


def test_the_steps_are_in_the_order_in_which_they_are_tried():
    assert [*Step] == ["exact", "larger", "split", "cpu", "held", "refused"]


@given(st.lists(st.sampled_from(Step), min_size=2))
def test_a_request_in_parts_took_the_worst_of_their_steps_and_at_least_the_one_that_splits(steps):
    ranks = [*Step]
    found = together(steps)
    assert ranks.index(found) == max(ranks.index(Step.SPLIT), *(ranks.index(step) for step in steps))


def test_a_request_in_one_part_took_its_step_and_one_without_rows_needs_nothing():
    assert [together([step]) for step in Step] == [*Step]
    assert together([]) is Step.EXACT


def test_requests_are_counted_by_model_and_step_and_those_that_fell_through_are_known():
    counts = StepCounts()
    for model, step in (("a", Step.EXACT), ("a", Step.EXACT), ("b", Step.CPU), ("a", Step.HELD), ("", Step.REFUSED)):
        counts.add(model, step)
    assert counts.by_model == {("a", "exact"): 2, ("b", "cpu"): 1, ("a", "held"): 1, ("", "refused"): 1}
    assert (counts.requests, counts.fallen) == (5, 3)
    assert {Step.EXACT, Step.LARGER, Step.SPLIT} | FALLEN == {*Step}


@given(st.floats(0, 1e9))
def test_the_time_to_come_again_is_the_prediction_within_bounds(ready_in_s):
    assert RETRY_S_MIN <= retry_after_s(ready_in_s) <= RETRY_S_MAX
    assert retry_after_s(ready_in_s) in {ready_in_s, RETRY_S_MIN, RETRY_S_MAX}


@pytest.mark.parametrize(("ready_in_s", "header"), [(0.2, "1"), (7.2, "8"), (12.0, "12"), (1e6, "300"), (None, "10")])
def test_the_header_never_says_earlier_than_predicted_nor_later_than_its_bound(ready_in_s, header):
    assert NotWarm("", retry_after_s(ready_in_s)).retry_after == header


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_request_is_held_for_what_is_predicted_to_come_in_its_time_and_only_then(ready_in_s, left_s):
    assert (refusal(DOUBLE, {"batch": 3}, ready_in_s, left_s) is None) == (ready_in_s <= left_s)
    assert isinstance(refusal(DOUBLE, {"batch": 3}, None, left_s), NotWarm)


def test_a_refusal_names_what_nothing_covers_and_both_times():
    refused = refusal(DOUBLE, {"batch": 3}, 42.0, 5.0)
    assert str(refused) == (
        "tiny:double has no executable on this machine that covers batch=3;"
        " one is predicted to be ready in 42.0 s, and the request has 5.0 s"
    )
    assert str(refusal(DOUBLE, {}, None, 5.0)) == "tiny:double has no executable on this machine that covers it"
