from __future__ import annotations

import itertools

import pytest

from benchmarks.simulator.arrivals import Arrivals
from benchmarks.simulator.cost_table import NO_NOISE, CostTable, Measured
from benchmarks.simulator.fixed_window import FixedWindow, Window
from benchmarks.simulator.simulation import Fate, Lane, Method, Request, simulate
from benchmarks.simulator.sweep import Settings, carried, sweep
from benchmarks.simulator.tuning import DELAYS_S, TIMEOUTS, tuned

METHOD = Method("m", "batch")
# Ten milliseconds whatever the rows: batching is all gain.
TABLE = CostTable(
    "m",
    "batch",
    {},
    NO_NOISE,
    tuple(Measured({"batch": rows, "seq": seq}, 10e3 * seq) for rows in (1, 4) for seq in (1, 2)),
)
PLAN = [(rows, seq) for rows in (1, 4) for seq in (1, 2)]


def requests_at(*at_ms: float) -> list[Request]:
    return [Request(METHOD, {"batch": 1, "seq": 1}, 1, at / 1e3, at / 1e3 + 0.03) for at in at_ms]


def test_the_best_of_all_settings_is_found() -> None:
    arriving = [group * 50 + offset for group in range(5) for offset in (0, 1, 1.5, 1.8)]
    found = tuned(lambda: requests_at(*arriving), lambda: Lane(way_us=0), TABLE.candidates(PLAN), TABLE, 0.03)
    # With a batch of four every request is in time; one by one the last of each four would end after 40 ms.
    assert found.window.batch_max == 4
    assert found.outcome.count(Fate.ANSWERED) == 20


def test_no_setting_of_the_grid_does_better_than_the_tuned_one() -> None:
    candidates = TABLE.candidates(PLAN)
    arriving = [number * 4.0 for number in range(60)]
    found = tuned(lambda: requests_at(*arriving), lambda: Lane(way_us=0), candidates, TABLE, 0.03)
    shares = [
        simulate(FixedWindow(window, candidates, "batch"), Lane(way_us=0), requests_at(*arriving)).share
        for window in itertools.starmap(Window, itertools.product(DELAYS_S, (1, 4), [0.03 * one for one in TIMEOUTS]))
    ]
    assert found.outcome.share >= max(shares) > min(shares)


def test_a_sweep_plays_both_at_every_load_and_the_second_time_with_the_given_settings() -> None:
    arrivals = Arrivals("t", tuple(number / 10 for number in range(100)), (1,) * 100)
    settings = Settings(arrivals, TABLE, 0.05, PLAN, PLAN)
    assert settings.full_per_s == pytest.approx(4 / 0.0103)  # four at a time, and the way to the lane
    said: list[str] = []
    points = sweep(settings, settings.full_per_s, (0.1, 2.0), say=said.append)
    assert [(point.load, len(point.live.requests), len(point.baseline.requests)) for point in points] == [
        (0.1, 100, 100),
        (2.0, 100, 100),
    ]
    assert points[0].live.share == points[0].baseline.share == 1.0
    assert points[1].live.share < 1.0
    assert points[0].live.requests[-1].arrived_s == pytest.approx(100 / (0.1 * settings.full_per_s))
    assert len(said) == 2
    again = sweep(settings, settings.full_per_s, (0.1, 2.0), {point.load: point.window for point in points})
    assert [point.baseline.counts for point in again] == [point.baseline.counts for point in points]


def test_the_carried_load_is_where_the_line_crosses_ninety_percent() -> None:
    assert carried((0.1, 0.2, 0.4), (1.0, 0.95, 0.85)) == pytest.approx(0.3)
    assert carried((0.1, 0.2, 0.4), (0.9, 0.5, 0.95)) == pytest.approx(0.1)  # once lost, it does not come back
    assert carried((0.1, 0.2), (1.0, 0.9)) == 0.2  # no more than was played
    with pytest.raises(AssertionError):
        carried((0.1, 0.2), (0.8, 0.7))
