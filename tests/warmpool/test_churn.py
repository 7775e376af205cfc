"""When an instance is steady, filling or churning, and what it says of how long that lasts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.churn import CALM_S, FALLEN_MIN, SOON_S, Churn, Seen, State


class Life:
    """An instance that is looked at once a second."""

    def __init__(self):
        self.now_s = 0.0
        self.requests = self.fallen = 0
        self.churn = Churn(0.0)
        self.look()

    def look(self, missing=0, over_in_s=None, requests=100, fallen=0):
        self.now_s += 1.0
        self.requests += requests
        self.fallen += fallen
        self.churn.look(Seen(missing, over_in_s, self.requests, self.fallen), self.now_s)
        return self.churn.state

    def until(self, state, **seen):
        """Seconds until it is in a state, if it always looks like this."""
        start_s = self.now_s
        while self.look(**seen) is not state:
            assert self.now_s < start_s + 1000, "never"
        return self.now_s - start_s

    def steady_in_s(self):
        return self.churn.steady_in_s(self.now_s)


def test_it_is_filling_until_nothing_is_missing_and_then_steady():
    assert Churn(0.0).state is State.FILLING
    life = Life()
    assert life.churn.state is State.STEADY
    assert life.look(missing=1, over_in_s=5.0) is State.FILLING
    assert (life.steady_in_s(), life.churn.since_s) == (5.0, 2.0)
    assert life.look(missing=1, over_in_s=4.0) is State.FILLING
    assert life.churn.since_s == 2.0
    assert life.look() is State.STEADY
    assert life.steady_in_s() == 0.0


def test_more_than_can_be_made_soon_is_churn_until_what_is_left_can_be_for_a_while():
    life = Life()
    assert life.look(missing=50, over_in_s=SOON_S) is State.FILLING
    assert life.look(missing=50, over_in_s=SOON_S + 1) is State.CHURNING
    assert life.steady_in_s() == SOON_S + 1
    assert life.until(State.FILLING, missing=3, over_in_s=2.0) == CALM_S
    assert life.look() is State.STEADY


def test_requests_that_fall_through_are_churn_until_they_have_been_covered_for_a_while():
    life = Life()
    assert life.look(fallen=5) is State.STEADY, "one in twenty is none"
    for _ in range(int(CALM_S)):
        life.look()
    assert life.look(fallen=100) is State.CHURNING
    assert life.churn.fallen_share == pytest.approx(0.1)
    assert life.until(State.STEADY) >= CALM_S
    assert life.churn.fallen_share == 0.0


def test_a_few_requests_say_nothing_though_all_of_them_fall_through():
    life = Life()
    for _ in range(FALLEN_MIN - 1):
        assert life.look(requests=1, fallen=1) is State.STEADY
    assert life.look(requests=1, fallen=1) is State.CHURNING


def test_what_fell_through_before_the_first_look_was_a_start():
    churn = Churn(0.0)
    churn.look(Seen(0, None, 10, 10), 1.0)
    assert (churn.state, churn.fallen_share) == (State.STEADY, 0.0)


def test_a_moment_without_trouble_does_not_end_churn():
    """Every second second is bad: without hysteresis the state would go to and fro."""
    life = Life()
    life.look(missing=9, over_in_s=100.0)
    for _ in range(20):
        assert life.look(missing=9, over_in_s=1.0) is State.CHURNING
        assert life.look(missing=9, over_in_s=100.0) is State.CHURNING


def test_what_nobody_predicts_is_told_by_the_pace_so_far_and_not_at_all_before_anything_was_made():
    life = Life()
    life.look(missing=20)
    assert life.steady_in_s() is None
    life.look(missing=20)
    assert life.steady_in_s() is None
    life.look(missing=18)
    life.look(missing=16)
    assert life.steady_in_s() == 8.0, "4 took 2 s"
    life.look(missing=30)
    assert life.steady_in_s() is None, "that is another matter"


def test_a_pace_that_is_too_slow_is_churn_and_what_cannot_be_had_at_all_is_not():
    life = Life()
    assert life.until(State.FILLING, missing=1) == 1.0
    for _ in range(100):
        assert life.look(missing=1) is State.FILLING
    for left in range(100, 95, -1):
        life.look(missing=left)
    assert (life.churn.state, life.steady_in_s()) == (State.CHURNING, 96.0)


def test_the_time_until_churn_may_end_counts():
    life = Life()
    life.look(missing=5, over_in_s=100.0)
    life.look(missing=5, over_in_s=1.0)
    assert life.steady_in_s() == CALM_S - 1
    life.look()
    assert life.steady_in_s() == CALM_S - 2


LOOKS = st.fixed_dictionaries(
    {
        "missing": st.integers(0, 100),
        "over_in_s": st.none() | st.floats(0, 1000),
        "requests": st.integers(0, 100),
        "fallen": st.integers(0, 100),
    }
)


@given(st.lists(LOOKS, min_size=1, max_size=60))
def test_whatever_happens_churn_lasts_a_while_and_steady_means_that_nothing_is_missing(looks):
    life = Life()
    begun_s = None
    for one in looks:
        before = life.churn.state
        state = life.look(**one | {"fallen": min(one["fallen"], one["requests"])})
        assert state is not State.STEADY or one["missing"] == 0
        assert 0.0 <= life.churn.fallen_share <= 1.0
        assert (life.steady_in_s() or 0.0) >= 0.0
        if state is State.CHURNING and before is not state:
            begun_s = life.now_s
        if before is State.CHURNING and state is not before:
            assert begun_s is not None
            assert life.now_s - begun_s >= CALM_S
    assert life.until(State.STEADY) <= 2 * CALM_S + 1, "it always ends"
