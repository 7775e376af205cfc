from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from warmpool.fitting.hysteresis import Hysteresis

GAINS = st.lists(st.floats(0, 0.5), max_size=40)


def looks(gains: list[float], **rules: float) -> list[int]:
    """At which looks, one second apart, the plan of a method is applied, which counts as fitted from then on."""
    hysteresis = Hysteresis(**rules)  # type: ignore[arg-type]
    fitted_s: dict[str, float] = {}
    applied = []
    for now_s, gain in enumerate(gains):
        if hysteresis.look({"predict": gain}, fitted_s, now_s):
            applied.append(now_s)
            fitted_s["predict"] = now_s
    return applied


def test_a_gain_has_to_be_there_at_so_many_looks_in_a_row() -> None:
    rules = {"gain_min": 0.2, "looks": 3, "rest_s": 0}
    assert looks([0.3, 0.3, 0.3], **rules) == [2]
    assert looks([0.3, 0.3, 0.1, 0.3, 0.3], **rules) == []
    assert looks([0.2] * 7, **rules) == [2, 5], "which begin anew once it was applied"


def test_a_plan_is_left_alone_for_a_while() -> None:
    assert looks([0.5] * 9, gain_min=0.1, looks=1, rest_s=4) == [0, 4, 8]


def test_a_plan_that_somebody_else_applied_is_left_alone_as_long() -> None:
    hysteresis = Hysteresis(gain_min=0.1, looks=1, rest_s=10)
    assert hysteresis.look({"predict": 0.5}, {"predict": 95.0}, 100.0) == []
    assert hysteresis.look({"predict": 0.5}, {"predict": 95.0}, 105.0) == ["predict"]


def test_methods_are_counted_apart_and_one_that_is_not_seen_begins_anew() -> None:
    hysteresis = Hysteresis(gain_min=0.1, looks=2, rest_s=0)
    assert hysteresis.look({"a": 0.5, "b": 0.5}, {}, 0) == []
    assert hysteresis.progress("a") == "1 of 2 looks"
    assert hysteresis.look({"b": 0.5}, {}, 1) == ["b"]
    assert hysteresis.look({"a": 0.5}, {}, 2) == []
    assert hysteresis.look({"a": 0.5}, {}, 3) == ["a"]


@given(GAINS, st.integers(1, 4), st.integers(0, 6))
def test_nothing_is_applied_for_too_little_or_too_soon(gains: list[float], count: int, rest_s: int) -> None:
    applied = looks(gains, gain_min=0.25, looks=count, rest_s=rest_s)
    for now in applied:
        assert now + 1 >= count
        assert all(gain >= 0.25 for gain in gains[now + 1 - count : now + 1])
    assert all(later - earlier >= max(rest_s, count) for earlier, later in itertools.pairwise(applied))
