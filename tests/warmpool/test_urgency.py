"""What headers and parameters say of a request's time and priority; what they may not say is named."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool import wire
from warmpool.errors import BadInput
from warmpool.settings import DEADLINE_MS_MAX
from warmpool.urgency import PRIORITY_MAX, PRIORITY_MIN, Urgency, whole_number

DAY_US = wire.TIMEOUT_MS_MAX * 1000


def of_headers(**headers: str) -> Urgency:
    return Urgency.of_headers([(f"x-warmpool-{name.replace('_', '-')}", value) for name, value in headers.items()])


def test_who_says_nothing_has_no_time_and_a_normal_priority():
    assert (of_headers().timeout_s, of_headers().priority) == (None, 0)
    assert Urgency().with_parameters({"binary_data_output": True, "sequence_id": "a"}) == Urgency()


def test_times_are_read_in_their_units():
    assert of_headers(timeout_ms="7").timeout_s == 0.007
    assert Urgency().with_parameters({"timeout": 7}).timeout_s == 7e-6


def test_a_timeout_of_zero_is_none_as_it_is_to_triton():
    assert Urgency().with_parameters({"timeout": 0}).timeout_s is None
    assert of_headers(timeout_ms="7").with_parameters({"timeout": 0}).timeout_s == 0.007


@given(st.integers(1, wire.TIMEOUT_MS_MAX), st.integers(1, DAY_US))
def test_of_two_times_the_shorter_counts(header_ms, parameter_us):
    both = of_headers(timeout_ms=str(header_ms)).with_parameters({"timeout": parameter_us})
    assert both.timeout_s == min(header_ms / 1e3, parameter_us / 1e6)


def test_a_lower_level_is_a_higher_priority_and_none_is_the_middle():
    priorities = [of_headers(priority=str(level)).priority for level in range(wire.PRIORITY_LEVEL_MAX + 1)]
    assert priorities == [0, 3, 2, 1, 0, -1, -2, -3]
    assert (max(priorities), min(priorities)) == (PRIORITY_MAX, PRIORITY_MIN)
    assert [Urgency().with_parameters({"priority": level}).priority for level in range(8)] == priorities


def test_the_headers_priority_counts_where_both_say_one():
    assert of_headers(priority="6").with_parameters({"priority": 1}).priority == -2
    assert of_headers(priority="0").with_parameters({"priority": 1}).priority == 3, "0 says none"


@pytest.mark.parametrize("name", ["x-warmpool-timeout-ms", "x-warmpool-priority"])
@pytest.mark.parametrize("second", ["1", "2"])
def test_a_header_that_is_there_twice_is_refused(name, second):
    with pytest.raises(BadInput, match=rf"^{name}: got \['1', '{second}'\]; allowed: one of them$"):
        Urgency.of_headers([("accept", "*/*"), (name, "1"), ("accept", "*/*"), (name, second)])


@pytest.mark.parametrize("value", ["", "-1", "8", "1.0", " 1", "+1", "urgent", "\u0661", "0" * 5000])
def test_a_priority_that_is_none_is_refused_by_the_headers_name(value):
    wanted = r"^x-warmpool-priority: got .*; allowed: 0 \(the default\), 1 \(most urgent\) to 7 \(least urgent\)$"
    with pytest.raises(BadInput, match=wanted):
        of_headers(priority=value)


@pytest.mark.parametrize("value", ["0", "-5", "abc", "1.5", "1e3", "", "\xb2", "86400001", "9" * 5000])
def test_a_time_that_is_none_is_refused_by_the_headers_name(value):
    with pytest.raises(BadInput, match=r"^x-warmpool-timeout-ms: got .*; allowed: 1 to 86400000$"):
        of_headers(timeout_ms=value)


@pytest.mark.parametrize("value", [-1, DAY_US + 1, 2**70, 1.0, 5e5, True, None, "500", [1], float("nan")])
def test_a_parameter_that_is_no_time_is_refused_by_its_name(value):
    wanted = r"^parameters\.timeout: got .*; allowed: a whole number, 0 to 86400000000: microseconds, 0 for none$"
    with pytest.raises(BadInput, match=wanted) as caught:
        Urgency().with_parameters({"timeout": value})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", [-1, 8, 2**64 - 1, 1.0, False, None, "1", {}])
def test_a_parameter_that_is_no_priority_is_refused_by_its_name(value):
    wanted = f"^parameters.priority: got {re.escape(repr(value))}; allowed: a whole number, 0 to 7: 0 "
    with pytest.raises(BadInput, match=wanted):
        Urgency().with_parameters({"priority": value})


def test_the_largest_of_each_is_taken():
    assert of_headers(timeout_ms=str(wire.TIMEOUT_MS_MAX)).timeout_s == 86_400
    assert Urgency().with_parameters({"timeout": DAY_US}).timeout_s == 86_400


@pytest.mark.parametrize("text", ["", "0", "11", "-1", "1.0", " 1", "\u0661", "9" * 5000])
def test_what_is_no_whole_number_in_bounds_is_named(text):
    with pytest.raises(BadInput, match=r"^field: got .*; allowed: 1 to 10$"):
        whole_number("field", text, 1, 10)
    assert whole_number("field", "10", 1, 10) == 10


def test_the_names_of_headers_are_those_that_clients_know():
    assert (wire.TIMEOUT_HEADER, wire.PRIORITY_HEADER) == ("x-warmpool-timeout-ms", "x-warmpool-priority")


def test_the_time_that_an_instance_gives_by_itself_is_one_that_a_caller_may_ask_for():
    assert DEADLINE_MS_MAX == wire.TIMEOUT_MS_MAX
