"""A lane's pace follows what most batches agree on, at once, and no minority ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.scheduling.pace import AGREE_MIN, VOTES_MAX, Pace

paces = st.floats(-5, 5)
margins = st.floats(0.05, 1.0)


def test_eight_that_agree_move_it_to_what_they_agree_on():
    pace = Pace()
    for number in range(AGREE_MIN - 1):
        assert pace.vote(0.7 + number / 100, 0.1) == 0.0
        assert (pace.value, pace.ratio) == (0.0, 1.0)
    assert pace.vote(0.77, 0.1) == pytest.approx(0.735)
    assert pace.value == pytest.approx(0.735)
    assert pace.ratio == pytest.approx(math.exp(0.735))
    assert pace.vote(0.7, 0.1) == 0.0


def test_it_goes_up_and_down_alike():
    up, down = Pace(), Pace()
    for vote in (0.5, 0.6, -0.1, 0.7, 0.5, 0.6, 0.0, 0.5, 0.4, 0.6, 0.1, 0.0, 0.1, 0.0, 0.1, 0.2, 0.0, 0.0):
        assert up.vote(vote, 0.2) == -down.vote(-vote, 0.2)
    assert up.value == -down.value == pytest.approx(0.05)


@given(st.lists(st.tuples(paces, margins), min_size=1, max_size=40))
def test_it_moves_only_when_eight_of_ten_contradict_it_and_then_to_what_one_of_them_could_have_said(votes):
    pace = Pace()
    for number, (vote, margin) in enumerate(votes):
        before = pace.value
        moved = pace.vote(vote, margin)
        last = votes[max(0, number + 1 - VOTES_MAX) : number + 1]
        slower = [spoke for spoke, give in last if spoke - give > before]
        faster = [spoke for spoke, give in last if spoke + give < before]
        assert bool(moved) == (max(len(slower), len(faster)) >= AGREE_MIN)
        assert pace.value == pytest.approx(before + moved)
        if moved:
            agreed = slower if moved > 0 else faster
            assert min(agreed) <= pace.value <= max(agreed)


@given(st.lists(st.floats(-0.04, 0.04), min_size=VOTES_MAX, max_size=30), st.data())
def test_two_of_ten_may_say_anything(votes, data):
    pace = Pace()
    for number, vote in enumerate(votes):
        wild = number % VOTES_MAX < VOTES_MAX - AGREE_MIN
        assert pace.vote(data.draw(st.floats(-50, 50)) if wild else vote, 0.05) == 0.0
