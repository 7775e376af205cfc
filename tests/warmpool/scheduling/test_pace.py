"""A lane has changed when most batches, of more than one bucket, agree on it, and by no minority's word."""

from __future__ import annotations

import itertools
import statistics
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.scheduling.pace import AGREE_MIN, OTHERS_MIN, VOTES_MAX, Pace, Vote

changes = st.floats(-5, 5) | st.floats(1.0, 1.5)
margins = st.floats(0.05, 1.0)
buckets = st.sampled_from("abc")


def voted(said, margin=0.1, among="ab"):
    """What comes of batches of these buckets in turn."""
    pace, turns = Pace(), itertools.cycle(among)
    return [pace.vote(Vote(number, next(turns), change, margin)) for number, change in enumerate(said, 1)]


def test_eight_that_agree_are_a_change_by_their_median_since_the_first_of_them():
    *before, change = voted([0.0, 0.7, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76, 0.77])
    assert before == [None] * AGREE_MIN
    assert change.by == pytest.approx(0.73)
    assert change.since == 2


def test_after_a_change_all_votes_are_new():
    assert [change is not None for change in voted([0.7] * 3 * AGREE_MIN)] == ([False] * (AGREE_MIN - 1) + [True]) * 3


def test_it_goes_up_and_down_alike():
    said = (0.5, 0.6, -0.1, 0.7, 0.5, 0.6, 0.0, 0.5, 0.4, 0.6, 0.1, 0.0, 0.1)
    up, down = voted(said, 0.2), voted([-change for change in said], 0.2)
    assert [change and (-change.by, change.since) for change in down] == up
    assert any(up)


@pytest.mark.parametrize("among", ["a", "aaaab"])
@given(said=st.lists(changes, max_size=40))
def test_one_bucket_alone_is_no_lane_whatever_its_batches_say_and_two_of_another(among, said):
    assert not any(voted(said, 0.05, among))


@given(st.lists(st.tuples(buckets, changes, margins), min_size=1, max_size=40))
def test_it_changes_only_when_eight_of_ten_agree_and_three_of_them_are_of_others_than_the_bucket_with_most(said):
    pace, last = Pace(), deque[Vote](maxlen=VOTES_MAX)
    for number, (bucket, by, margin) in enumerate(said):
        last.append(Vote(number, bucket, by, margin))
        change = pace.vote(last[-1])
        middle = statistics.median(one.change for one in last)
        agreed = [one for one in last if middle and one.change / middle > 0.5 and abs(one.change) > one.margin]
        most = max(sum(one.bucket == bucket for one in agreed) for bucket in "abc")
        assert (change is not None) == (len(agreed) >= AGREE_MIN and len(agreed) - most >= OTHERS_MIN)
        if change:
            assert change == (middle, agreed[0].batch)
            last.clear()


@given(st.lists(st.floats(-0.04, 0.04), min_size=VOTES_MAX, max_size=30), st.data())
def test_two_of_ten_may_say_anything(said, data):
    wild = [
        data.draw(st.floats(-50, 50)) if number % VOTES_MAX < VOTES_MAX - AGREE_MIN else one
        for number, one in enumerate(said)
    ]
    assert not any(voted(wild, 0.05))
