"""Evidence, against all ways in which a fair game may go."""

from __future__ import annotations

import itertools
import random

import pytest

from warmpool.rollout.evidence import Evidence


def after(gains: tuple[float, ...], loss_max: float = 1.0) -> float:
    evidence = Evidence()
    for gain in gains:
        evidence.add(gain, loss_max)
    return evidence.value


@pytest.mark.parametrize(("win", "chance"), [(1.0, 0.5), (9.0, 0.1), (0.25, 0.8)])
def test_in_a_fair_game_the_mean_of_the_capital_is_what_was_put_in(win: float, chance: float) -> None:
    bets = 10
    mean = 0.0
    for wins in itertools.product((True, False), repeat=bets):
        probability = chance ** sum(wins) * (1 - chance) ** (bets - sum(wins))
        mean += probability * after(tuple(win if won else -1.0 for won in wins))
    assert mean == pytest.approx(1 - 1 / (bets + 1))  # the rest belongs to gamblers who have not begun


def test_ten_losses_of_all_that_may_be_lost_in_a_row_are_good_evidence() -> None:
    assert after((1.0,) * 20) > 1e4
    assert after((9.0,) * 8, 1.0) > 1e5


def test_a_good_beginning_has_not_to_be_undone() -> None:
    assert after((-1.0,) * 500 + (9.0,) * 12) > 1e5


def test_nothing_comes_of_a_good_canary_and_nothing_overflows() -> None:
    assert after((-1.0,) * 1000) < 1
    assert after((99.0,) * 1000, 1.0) <= 1e100


def test_how_often_chance_alone_ever_reaches_a_hundred_is_below_one_in_a_hundred() -> None:
    rng = random.Random(7)
    reached = 0
    for _ in range(500):
        evidence = Evidence()
        for _ in range(300):
            evidence.add(9.0 if rng.random() < 0.1 else -1.0, 1.0)
            if evidence.value >= 100:
                reached += 1
                break
    assert reached <= 10  # 5 are expected at most, and 11 or more of a mean of 5 would be one chance in a hundred
