"""Models share a lane by weight, and idleness saves up nothing."""

from __future__ import annotations

import random

import pytest

from warmpool.scheduling.fair_share import FairShare


def run(shares: FairShare, costs_us: dict[str, list[float]]) -> dict[str, float]:
    """Let the models that still have runs take turns; what each used until the first had none left."""
    used = dict.fromkeys(costs_us, 0.0)
    while all(costs_us.values()):
        model = min(costs_us, key=shares.time)
        cost_us = costs_us[model].pop()
        shares.used(model, cost_us)
        used[model] += cost_us
    return used


@pytest.mark.parametrize("seed", range(20))
def test_what_models_used_while_all_wait_differs_from_their_weights_by_no_more_than_a_run_of_each(seed):
    draw = random.Random(seed)
    weights = {"slow": draw.choice([0.5, 1, 3]), "fast": draw.choice([1, 2])}
    shares = FairShare(weights)
    for model in weights:
        shares.joins(model)
    costs_us = {"slow": [draw.uniform(100, 200) for _ in range(50)], "fast": [draw.uniform(1, 2) for _ in range(5000)]}
    used = run(shares, costs_us)
    apart = used["slow"] / weights["slow"] - used["fast"] / weights["fast"]
    assert abs(apart) <= 200 / weights["slow"] + 2 / weights["fast"]


def test_one_that_was_idle_gets_no_more_than_its_share_afterwards():
    shares = FairShare()
    shares.joins("early")
    for _ in range(100):
        shares.used("early", 10.0)
    shares.joins("late")
    used = run(shares, {"early": [10.0] * 100, "late": [10.0] * 20})
    assert used in ({"early": 190.0, "late": 200.0}, {"early": 200.0, "late": 200.0})


def test_one_that_comes_back_does_not_forget_what_it_used():
    shares = FairShare()
    shares.joins("one")
    shares.joins("other")
    shares.used("one", 1000.0)
    shares.joins("one")
    assert shares.time("one") > shares.time("other")


def test_the_share_of_a_model_is_its_weight_among_those_that_wait():
    shares = FairShare({"heavy": 3.0})
    assert shares.share("heavy", ["light"]) == 0.75
    assert shares.share("light", ["light", "heavy"]) == 0.25
    assert shares.share("light", []) == 1.0
