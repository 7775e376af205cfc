"""A lane that keeps failing is tried less and less often, and trusted again only once it has stayed well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.circuit import FAILURES_MAX, PROVEN_S, RESTART_S_MAX, TRIAL_S, TRIAL_S_MAX, WINDOW_S, Circuit


def opened(now_s=0.0):
    circuit = Circuit()
    for _ in range(FAILURES_MAX):
        circuit.warmed()
        circuit.failed("it died", now_s)
    return circuit


def test_what_had_been_warm_is_started_again_at_once():
    circuit = Circuit()
    for turn in range(20):
        circuit.tried()
        circuit.warmed()
        assert circuit.failed("it died", turn * WINDOW_S / (FAILURES_MAX - 2)) == 0.0
    assert circuit.state == "closed"
    assert circuit.why_down(1e9) == ""


def test_what_dies_before_it_is_warm_is_started_again_after_growing_delays():
    circuit, now_s, delays = Circuit(), 0.0, []
    for _ in range(9):
        now_s += WINDOW_S
        delays.append(circuit.failed("it died", now_s))
    assert delays[:4] == pytest.approx([0.0, 0.1, 0.2, 0.4])
    assert delays[-1] == RESTART_S_MAX
    assert circuit.state == "closed"


def test_failures_within_a_window_open_it_and_it_says_why_and_until_when():
    circuit = Circuit()
    for turn in range(FAILURES_MAX - 1):
        circuit.failed(f"it died of {turn}", turn * WINDOW_S / (FAILURES_MAX - 1))
        assert circuit.state == "closed"
    assert circuit.failed("it died of 4", WINDOW_S) == TRIAL_S
    assert circuit.state == "open"
    assert circuit.why_down(WINDOW_S) == (
        f"it failed {FAILURES_MAX} times in 30 s, the last time: it died of 4; it is tried again in 1 s"
    )
    assert circuit.describe(WINDOW_S + 0.25)["next_try_in_s"] == 0.8
    assert circuit.describe(WINDOW_S + 100)["next_try_in_s"] == 0


def test_trials_that_fail_are_ever_further_apart_up_to_a_minute():
    circuit, delays = opened(), []
    for turn in range(10):
        circuit.tried()
        assert circuit.state == "half-open"
        assert circuit.why_down(turn) == ""
        delays.append(circuit.failed("it died", 100.0 * turn))
        assert circuit.state == "open"
    assert delays == [2, 4, 8, 16, 32, *[TRIAL_S_MAX] * 5]
    assert "10 trials failed, the last one: it died" in circuit.reason


def test_a_trial_is_over_once_the_lane_has_stayed_warm_and_answered_and_then_all_is_forgotten():
    circuit = opened()
    circuit.tried()
    circuit.warmed()
    circuit.answered(10.0)
    circuit.answered(10.0 + PROVEN_S / 2)
    assert circuit.state == "half-open"
    circuit.answered(10.0 + PROVEN_S)
    assert circuit.describe(30.0) == {"state": "closed", "reason": "", "next_try_in_s": None}
    for _ in range(FAILURES_MAX - 1):
        circuit.warmed()
        assert circuit.failed("it died", 40.0) == 0.0
    assert circuit.failed("it died", 40.0) == TRIAL_S


def test_what_one_process_answered_speaks_for_no_other():
    circuit = opened()
    circuit.tried()
    circuit.answered(0.0)
    assert circuit.failed("it died", 1.0) == 2 * TRIAL_S
    circuit.tried()
    circuit.answered(PROVEN_S + 1.0)
    assert circuit.state == "half-open"


@given(st.lists(st.tuples(st.sampled_from(["fail", "warm", "answer", "try"]), st.floats(0.0, 40.0)), max_size=80))
def test_it_is_down_only_until_a_time_that_is_known_and_near(events):
    circuit, now_s = Circuit(), 0.0
    for what, passed_s in events:
        now_s += passed_s
        match what:
            case "fail":
                delay_s = circuit.failed("it died", now_s)
                assert 0.0 <= delay_s <= TRIAL_S_MAX
                assert (circuit.state == "open") is bool(circuit.why_down(now_s))
                assert circuit.state != "open" or circuit.next_try_s == now_s + delay_s
            case "warm":
                circuit.warmed()
            case "answer":
                circuit.answered(now_s)
            case _:
                circuit.tried()
                assert circuit.state != "open"
        assert bool(circuit.reason) is (circuit.state != "closed")
