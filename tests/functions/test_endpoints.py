import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.endpoints import IN_FLIGHT_MAX, Endpoint, Failure, choose, failure_of, pause_before_retry_s
from warmpool.errors import NotWarm, Overloaded, PoolUnavailable

endpoints = st.lists(
    st.builds(
        Endpoint,
        url=st.just("http://127.0.0.1:1"),
        in_flight=st.integers(0, IN_FLIGHT_MAX),
        resting_until_s=st.floats(0, 20),
        last_used=st.integers(0, 100),
    ),
    min_size=1,
    max_size=5,
)


@given(endpoints, st.floats(0, 20))
def test_a_rested_endpoint_is_taken_before_a_resting_one_and_a_less_loaded_before_a_more_loaded_one(ones, now_s):
    rested = [one for one in ones if one.resting_until_s <= now_s] or ones
    if min(one.in_flight for one in rested) == IN_FLIGHT_MAX:
        with pytest.raises(Overloaded):
            choose(ones, now_s)
        return
    chosen = choose(ones, now_s)
    assert chosen in rested
    assert all(chosen.in_flight <= one.in_flight for one in rested)
    assert all(chosen.last_used <= one.last_used for one in rested if one.in_flight == chosen.in_flight)


def test_the_endpoint_that_failed_is_taken_again_only_where_it_is_the_only_one():
    failed, other = Endpoint("http://a"), Endpoint("http://b", in_flight=5, resting_until_s=9)
    assert choose([failed, other], 0, avoid=failed) is other
    assert choose([failed], 0, avoid=failed) is failed


def test_a_rest_ends():
    failed, other = Endpoint("http://a"), Endpoint("http://b", in_flight=1)
    failed.rest(100, 3)
    assert choose([failed, other], 102.9) is other
    assert choose([failed, other], 103) is failed


def test_no_endpoint_rests_for_long_whatever_it_asks_for():
    endpoint = Endpoint("http://a")
    endpoint.rest(100, 86_400)
    assert endpoint.resting_until_s == 110


@pytest.mark.parametrize(
    ("pause_s", "remaining_s", "same_endpoint", "expected"),
    [
        (None, 10, False, None),
        (3, 10, False, 0),
        (3, 10, True, 3),
        (3, 3, True, None),
        (3, 1, False, 0),
        (3, 0, False, None),
    ],
)
def test_the_pause_before_a_retry_must_fit_into_the_remaining_time(pause_s, remaining_s, same_endpoint, expected):
    failure = Failure(NotWarm("loading"), pause_s)
    assert pause_before_retry_s(failure, remaining_s, same_endpoint=same_endpoint) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"7", 7),
        (b" 7 ", 7),
        (b"", 1),
        (b"soon", 1),
        (b"-3", 1),
        (b"9" * 400, 1),
        (b"Fri, 31 Dec 1999 23:59:59 GMT", 1),
    ],
)
def test_a_retry_after_that_is_no_number_of_seconds_counts_as_one(value, expected):
    failure = failure_of(503, {b"retry-after": value}, b"")
    assert isinstance(failure.error, NotWarm)
    assert failure.error.retry_after_s == failure.pause_s == expected


def test_a_message_has_a_largest_length():
    failure = failure_of(502, {}, b'{"error": "' + b"x" * 5000 + b'"}')
    assert isinstance(failure.error, PoolUnavailable)
    assert len(str(failure.error)) == 1000
