"""Bytes are held by whom they came from, within the bound, and given back whatever happens."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.byte_budget import ByteBudget
from warmpool.errors import Overloaded, TooLarge


def test_what_is_held_grows_and_is_given_back_at_the_end():
    budget = ByteBudget(10)
    with budget.hold() as held:
        held.raise_to(4)
        held.raise_to(7)
        held.raise_to(5)
        assert (budget.held_bytes, repr(budget)) == (7, "<ByteBudget 7 of 10 bytes held>")
    assert budget.held_bytes == 0


def test_more_than_all_may_have_is_refused_for_good_and_what_others_hold_for_now():
    budget = ByteBudget(10)
    with budget.hold() as one, budget.hold() as other:
        with pytest.raises(TooLarge, match=r"^body: 11 bytes, allowed in one request: 10$"):
            one.raise_to(11)
        one.raise_to(8)
        with pytest.raises(Overloaded, match=r"^requests hold 8 bytes, 10 may$") as caught:
            other.raise_to(3)
        assert caught.value.retry_after == "1"
        other.raise_to(2)
        assert budget.held_bytes == 10
        other.raise_to(0)
    assert budget.held_bytes == 0


def test_no_bytes_are_never_refused():
    budget = ByteBudget(10)
    with budget.hold() as one, budget.hold() as other:
        one.raise_to(10)
        other.raise_to(0)


def test_who_fails_gives_back_what_it_held():
    budget = ByteBudget(10)

    def fail() -> None:
        with budget.hold() as held:
            held.raise_to(9)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert budget.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=40))
def test_the_bound_is_kept_and_the_sum_is_right_whoever_takes_what(steps):
    budget, sizes = ByteBudget(50), [0] * 4
    with contextlib.ExitStack() as stack:
        everyone = [stack.enter_context(budget.hold()) for _ in sizes]
        for number, size in steps:
            fits = sum(sizes) - sizes[number] + size <= 50
            try:
                everyone[number].raise_to(size)
            except Overloaded:
                assert not fits
            else:
                assert fits or size <= sizes[number]
                sizes[number] = max(size, sizes[number])
            assert budget.held_bytes == sum(sizes) <= 50
    assert budget.held_bytes == 0
