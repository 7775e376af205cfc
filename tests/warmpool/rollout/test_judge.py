"""The judge, from simulated traffic and from counts made by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from tests.warmpool.rollout.simulated import Fault, Simulation, World
from warmpool.rollout.judge import Judge, Policy, binomial_tail
from warmpool.rollout.tally import Counts

RUNS = 300
BAKE_S = 600


def some_world(random: np.random.Generator) -> World:
    """One of many."""
    return World(
        rate=float(random.choice([2.0, 10.0, 30.0])),
        share=float(random.choice([0.02, 0.1, 0.3, 0.5])),
        error=float(random.choice([0.0, 0.001, 0.01])),
        median_us=float(random.choice([300.0, 5_000.0, 80_000.0])),
        spread=float(random.choice([0.1, 0.5, 1.2])),
        tail=float(random.choice([0.0, 0.01, 0.05])),
        burst=float(random.choice([0.0, 0.02])),
        outage=float(random.choice([0.0, 0.005])),
        kill=float(random.choice([0.0, 0.0005])),
    )


@pytest.mark.slow
def test_of_three_hundred_good_canaries_none_is_rolled_back_and_those_with_traffic_are_promoted() -> None:
    random = np.random.default_rng(20_261_130)
    promoted = enough = 0
    for seed in range(RUNS):
        simulation = Simulation(some_world(random), seed)
        verdict = simulation.run(BAKE_S + 60, until=lambda verdict: verdict.action != "continue")
        assert verdict.action != "rollback", (seed, simulation.world, verdict)
        enough += simulation.judge.total.canary.requests >= Policy().requests_min
        promoted += verdict.action == "promote"
    assert enough >= RUNS // 2
    assert promoted >= enough * 0.98


# By its fault: the accusation, and within how many of the canary's own requests, or comparisons, it is made.
CAUGHT = {
    "NaN in a fifth of its answers": (Fault(not_finite=0.2), "NaN", "compared", 60),
    "NaN in one of fifty answers": (Fault(not_finite=0.02), "NaN", "compared", 1500),
    "every answer drifts": (Fault(differing=1.0), "differ", "compared", 20),
    "padding leaks into half of its answers": (Fault(differing=0.5), "differ", "compared", 40),
    "one answer of fifty differs": (Fault(differing=0.02), "differ", "compared", 2500),
    "runs take half as long again": (Fault(slower=1.5), "runs take longer", "requests", 1500),
    "one request of ten stalls": (Fault(stalls=0.1), "far longer", "requests", 600),
    "all requests fail": (Fault(error=1.0), "fails", "requests", 200),
    "one request of twenty fails": (Fault(error=0.05), "fails", "requests", 800),
    "half of its batches kill their lane": (Fault(crash=0.5), "crash", "requests", 60),
    "lanes grow by half a mebibyte a batch": (Fault(leak_bytes=1 << 19), "grow", "requests", 800),
}


@pytest.mark.parametrize("name", CAUGHT)
@pytest.mark.parametrize("seed", range(10))
def test_a_bad_canary_is_caught_for_what_it_does_within_a_stated_count(name: str, seed: int) -> None:
    fault, accusation, counted, count_max = CAUGHT[name]
    simulation = Simulation(World(), seed, fault)
    verdict = simulation.run(3000)
    assert verdict.action == "rollback"
    assert accusation in verdict.reason
    assert getattr(simulation.judge.total.canary, counted) <= count_max


@pytest.mark.parametrize("name", ["NaN in a fifth of its answers", "all requests fail", "runs take half as long again"])
def test_a_canary_that_turns_bad_late_is_caught_all_the_same(name: str) -> None:
    fault, accusation, _, _ = CAUGHT[name]
    begins = 400
    simulation = Simulation(World(), 3, dataclasses.replace(fault, begins=begins))
    assert simulation.run(begins).action == "continue"
    simulation = Simulation(World(), 3, dataclasses.replace(fault, begins=begins))
    verdict = simulation.run(begins + 600)
    assert (verdict.action, accusation in verdict.reason) == ("rollback", True)


def some(**numbers: int) -> Counts:
    """What a second of both versions has unless it says otherwise."""
    counts = Counts(requests=10, batches=10)
    for name, number in numbers.items():
        setattr(counts, name, number)
    return counts


def judged(seconds: int, stable: Counts, canary: Counts, policy: Policy | None = None) -> Judge:
    judge = Judge(policy or Policy())
    for second in range(seconds):
        judge.add(second, stable, canary)
    return judge


def test_stable_s_own_errors_are_not_the_canary_s() -> None:
    judge = judged(300, some(errors=5), some(errors=5))
    assert judge.verdict(300).action == "continue"
    assert judge.figures(300)["burn_300_s"] == 0
    assert judge.evidence["errors"].value < 1


def test_errors_that_do_not_burn_the_budget_do_not_roll_back() -> None:
    generous = Policy(error_budget=0.2)
    assert judged(100, some(), some(errors=1)).verdict(100).action == "rollback"
    judge = judged(100, some(), some(errors=1), generous)
    assert judge.evidence["errors"].value > 1e5
    assert judge.verdict(100).action == "continue"


def test_what_burned_a_while_ago_does_not_roll_back_now() -> None:
    judge = judged(50, some(), some(errors=1))
    for second in range(50, 400):
        judge.add(second, some(), some())
    assert judge.figures(400)["burn_600_s"] > 6
    assert judge.verdict(400).action == "continue"


def test_two_errors_are_no_case_however_unlikely() -> None:
    judge = Judge(Policy(alarm_max=0.9))
    judge.add(0, some(requests=1000), some(errors=2))
    assert judge.verdict(1).action == "continue"


def test_crashes_in_the_canary_s_batches_alone_are_a_crash_loop_and_kills_of_all_lanes_are_none() -> None:
    judge = Judge(Policy())
    for second in range(3):
        judge.add(second, some(batches=90), some(crashes=1))
    assert "3 of 3 times" in judge.verdict(3).reason
    assert judge.verdict(3 + 60).action == "continue"  # by then that is long ago
    judge = Judge(Policy())
    for second in range(45):
        judge.add(second, some(batches=90, crashes=1), some(crashes=int(second % 9 == 0)))
    assert judge.total.canary.crashes == 5
    assert judge.verdict(45).action == "continue"


@pytest.mark.parametrize(("least", "count", "share"), [(3, 3, 0.1), (2, 5, 0.3), (0, 4, 0.5), (1, 1, 1.0)])
def test_the_tail_of_a_binomial_distribution_is_what_counting_gives(least: int, count: int, share: float) -> None:
    outcomes = itertools.product((True, False), repeat=count)
    wanted = sum(math.prod(share if hit else 1 - share for hit in hits) for hits in outcomes if sum(hits) >= least)
    assert binomial_tail(least, count, share) == pytest.approx(wanted)


def test_growth_counts_once_it_is_more_than_is_allowed() -> None:
    judge = judged(60, some(), some(grown_bytes=1 << 20))
    assert judge.verdict(60).action == "continue"
    judge.add(60, some(), some(grown_bytes=8 << 20))
    assert judge.verdict(61).reason == "lanes grow in its batches"


def test_a_promotion_waits_for_time_for_requests_and_for_doubts_to_go() -> None:
    assert judged(599, some(), some()).verdict(599).reason == "watched for 599 s of 600"
    assert judged(600, some(), some()).verdict(600).action == "promote"
    few = judged(600, some(), some(requests=0, batches=0, compared=0))
    few.add(600, some(), some(requests=1))
    assert few.verdict(1300).reason == "1 requests of 200"
    compared = judged(600, some(), some(), Policy(compared_min=1))
    assert compared.verdict(600).reason == "0 comparisons of 1"
    doubtful = judged(600, some(), some())
    for second in range(600, 605):
        doubtful.add(second, some(), some(compared=1, differing=second % 3 == 0))
    assert doubtful.verdict(605).reason == "in doubt: differing"


def test_a_canary_that_gets_mirrored_requests_alone_is_judged_by_them() -> None:
    shown = some(requests=0, compared=5)
    assert judged(600, some(), shown).verdict(600).action == "promote"
    assert judged(10, some(), some(requests=0, compared=5, differing=5)).verdict(10).action == "rollback"


def test_nothing_is_watched_before_the_canary_has_its_first_request() -> None:
    judge = judged(700, some(), Counts())
    assert judge.figures(700)["watched_s"] == 0
    judge.add(700, some(), some())
    assert judge.figures(710)["watched_s"] == 10


def test_little_traffic_is_compared_over_more_than_a_second() -> None:
    judge = Judge(Policy())
    for second in range(400):
        canary = some(requests=1, batches=1, errors=1) if second % 20 == 0 else Counts()
        judge.add(second, some(requests=1, batches=1), canary)
    assert judge.verdict(400).reason == "it fails more often than stable"
