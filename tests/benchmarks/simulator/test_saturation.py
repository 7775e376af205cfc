from __future__ import annotations

import pytest

from benchmarks.simulator.arrivals import Arrivals
from benchmarks.simulator.cost_table import NO_NOISE, CostTable, Measured
from benchmarks.simulator.generator import generate
from benchmarks.simulator.plans import fitted_plan, half_as_many, padding_ratio
from benchmarks.simulator.saturation import best_per_s, grid, saturate
from benchmarks.simulator.simulation import WAY_US

SIZES = (16, 32, 48, 64, 80, 96, 112, 128)
TABLE = CostTable(
    "m",
    "batch",
    {},
    NO_NOISE,
    tuple(Measured({"batch": rows, "seq": seq}, 1000.0 + 100.0 * rows * seq) for rows in (1, 2, 4, 8) for seq in SIZES),
)
POWERS = grid((1, 2, 4, 8), (16, 32, 64, 128))


def test_the_best_rate_is_that_of_full_batches_one_after_the_other() -> None:
    candidates = TABLE.candidates([(4, 16)])
    assert best_per_s([16] * 8, candidates, TABLE, 0) == pytest.approx(8e6 / (2 * (WAY_US + 1000 + 6400)))


def test_clients_are_all_answered_and_no_faster_than_the_best() -> None:
    lengths = generate("steady", 300, 1).within(128).lengths
    found = saturate(lengths, TABLE.candidates(POWERS), TABLE, 16, 0)
    assert len(found.outcome.requests) == 300
    assert 0.5 < found.over_best <= 1.0
    assert found.per_s == pytest.approx(300 / found.outcome.end_s)
    waiting = max(len(run.requests) for run in found.outcome.runs)
    assert 1 < waiting <= 8
    assert found.p99_s == saturate(lengths, TABLE.candidates(POWERS), TABLE, 16, 0).p99_s


def test_one_client_never_waits_for_others() -> None:
    found = saturate([16] * 5, TABLE.candidates(POWERS), TABLE, 1, 0)
    assert [len(run.requests) for run in found.outcome.runs] == [1] * 5
    assert found.p99_s == pytest.approx((WAY_US + 1000 + 1600) * 1e-6)


def test_a_fitted_plan_has_no_more_buckets_than_it_may_covers_everything_and_was_measured() -> None:
    traffic = generate("bursty", 600, 2).within(128)
    runs = saturate(traffic.lengths, TABLE.candidates(POWERS), TABLE, 16, 0).outcome.runs
    plan = fitted_plan(runs, TABLE, POWERS, 8)
    assert len(plan) == len(set(plan)) <= 8
    assert set(plan) <= set(TABLE.measured_us)
    assert max(plan) == (8, 128)
    assert min(rows for rows, _ in plan) == 1
    assert (1, 128) in plan


@pytest.mark.parametrize("seed", [1, 3])
def test_half_as_many_fitted_executables_are_as_good_as_powers_of_two(seed: int) -> None:
    traffic = generate("bursty", 2000, seed).within(128)
    found = half_as_many(traffic, TABLE, POWERS, 0)
    assert len(found.plan) <= 8
    assert found.time_ratio <= 1.0


def test_boundaries_are_fitted_to_the_first_half_and_judged_by_the_second() -> None:
    traffic = generate("steady", 2000, 4).within(256)
    assert 1.0 <= padding_ratio(traffic, 6, 256) <= 1.25
    moved = Arrivals("t", traffic.at_s, tuple(10 + number % 10 + 60 * (number >= 1000) for number in range(2000)))
    assert padding_ratio(moved, 3, 256) > 2  # the first half says nothing of the second
