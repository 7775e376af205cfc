"""What became of missing executables."""

from __future__ import annotations

from tests.warmpool.compiling.made_up import gap
from warmpool.compiling.history import KEPT_MAX, PASSING_FIRST_S, PASSING_S_MAX, RETRY_FIRST_S, RETRY_S_MAX, History


def test_the_last_outcomes_are_kept_the_newest_last():
    history = History()
    for batch in range(1, KEPT_MAX + 9):
        history.close(gap(batch), 1.0, 5.0)
    assert [one.gap.bucket["batch"] for one in history.outcomes] == list(range(9, KEPT_MAX + 9))
    assert history.made == KEPT_MAX + 8


def test_a_failure_rests_longer_each_time_up_to_a_bound():
    history = History()
    now_s = 0.0
    for tries in range(1, 12):
        history.fail(gap(), "no", 1.0, 5.0, now_s)
        rest_s = min(RETRY_FIRST_S * 2 ** (tries - 1), RETRY_S_MAX)
        assert not history.may_try(gap(), now_s + rest_s - 0.1)
        now_s += rest_s
        assert history.may_try(gap(), now_s)
    assert history.failed == 11


def test_a_failure_of_the_moment_rests_shorter_and_counts_by_itself():
    history = History()
    history.fail(gap(), "no", 1.0, 5.0, 0.0)
    now_s = 0.0
    for tries in range(1, 9):
        history.fail(gap(), "the disk is full", 1.0, 5.0, now_s, passing=True)
        rest_s = min(PASSING_FIRST_S * 2 ** (tries - 1), PASSING_S_MAX)
        assert not history.may_try(gap(), now_s + rest_s - 0.1)
        now_s += rest_s
        assert history.may_try(gap(), now_s)
    history.fail(gap(), "no", 1.0, 5.0, now_s)
    assert not history.may_try(gap(), now_s + RETRY_FIRST_S - 0.1)
    assert history.may_try(gap(), now_s + RETRY_FIRST_S)


def test_a_failure_concerns_one_key():
    history = History()
    history.fail(gap(1), "no", 1.0, 5.0, 0.0)
    assert history.may_try(gap(2), 0.0)
    assert history.may_try(gap(1, key="of another program"), 0.0)


def test_what_is_made_after_all_failed_no_more():
    history = History()
    history.fail(gap(), "no", 1.0, 5.0, 0.0)
    history.close(gap(), 1.0, 6.0)
    assert history.failures == {}
    assert [one.outcome for one in history.outcomes] == ["failed", "made"]


def test_failures_of_what_is_not_missing_any_more_are_forgotten():
    history = History()
    history.fail(gap(1), "no", 1.0, 5.0, 0.0)
    history.fail(gap(2), "no", 1.0, 5.0, 0.0)
    history.keep({gap(2).key})
    assert list(history.failures) == [gap(2).key]


def test_what_rests_is_no_failure_that_counts():
    history = History()
    history.rest(gap(), "nothing to do", 0.0)
    assert not history.may_try(gap(), RETRY_FIRST_S - 1)
    assert (history.failed, list(history.outcomes)) == (0, [])


def test_it_is_described():
    history = History()
    history.close(gap(2, 8), 1.23456, 5.0)
    history.fail(gap(4, 8), "no", 0.5, 6.0, 0.0)
    described = history.describe()
    assert described["failures"] == {"tiny:predict batch=4,seq=8 of 1": "no"}
    assert described["history"][0] == {
        "title": "tiny:predict batch=2,seq=8",
        "version": "1",
        "key": "predict 2 8 False",
        "outcome": "made",
        "seconds": 1.235,
        "when_s": 5.0,
        "reason": "",
    }
