"""The centre of the last numbers heeds no minority, and stays where chance explains the rest."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.scheduling.recent import FEW, Recent

numbers = st.floats(-50, 50)


def recent(*added, size_max=31):
    made = Recent(size_max)
    for number in added:
        made.add(number)
    return made


@given(st.lists(numbers, max_size=60), st.integers(2, 12))
def test_it_holds_the_last_ones_in_their_order(added, size_max):
    made = recent(*added, size_max=size_max)
    assert list(made.numbers) == added[-size_max:]
    if len(made.numbers) > 1:
        low, high, highest = made.tails()
        assert highest == max(made.numbers)
        assert made.ends() == (min(made.numbers), highest)
        assert low <= high <= highest or len(made.numbers) == 2


@given(st.lists(numbers, min_size=FEW, max_size=31))
def test_what_is_believed_stays_or_becomes_the_mean_of_the_middle(added):
    ordered = sorted(added)
    cut = min(math.ceil(len(added) / 4), (len(added) - 1) // 2)
    middle = statistics.fmean(ordered[cut : len(added) - cut])
    assert recent(*added).centre(1000.0, 0.0) == pytest.approx(middle)  # which nothing here explains
    assert recent(*added).centre(middle, 0.0) == pytest.approx(middle)


@given(st.lists(st.floats(0.9, 1.1), min_size=8, max_size=31), st.data())
def test_a_quarter_may_be_anything(added, data):
    count = len(added) // 4
    places = data.draw(st.permutations(range(len(added))))[:count]
    for place in places:
        added[place] = data.draw(st.floats(-1e6, 1e6))
    assert 0.9 <= recent(*added).centre(1000.0, 0.0) <= 1.1


def test_chance_is_not_followed_and_a_lasting_change_is():
    chance = random.Random(1)
    made = recent(*(chance.gauss(0.0, 1.0) for _ in range(31)))
    assert made.centre(0.0, 0.0) == 0.0
    for _ in range(31):
        made.add(chance.gauss(1.0, 1.0))
    assert 0.7 < made.centre(0.0, 0.0) < 1.3


def test_while_there_are_few_what_was_assumed_counts_as_two_of_them():
    made = Recent(31)
    assert made.centre(7.0, 7.0) == 7.0
    for number in (9.0, 9.0):
        made.add(number)
        assert made.centre(7.0, 7.0) == 7.0
    made.add(9.0)
    assert made.centre(7.0, 7.0) == 9.0
    made.add(9.0)
    made.add(9.0)
    assert made.centre(7.0, -1e9) == 9.0  # it is not asked any more


def test_a_tenth_lies_beyond_each_tail():
    made = recent(*range(31))
    assert made.tails() == (4, 26, 30)
    assert recent(*range(FEW)).tails() == (1, 3, 4)


def test_numbers_can_be_put_in_the_place_of_all():
    made = recent(1.0, 2.0, 3.0, size_max=3)
    made.replace([6.0, 5.0, 4.0])
    made.add(7.0)
    assert list(made.numbers) == [5.0, 4.0, 7.0]
    assert made.tails()[2] == 7.0
