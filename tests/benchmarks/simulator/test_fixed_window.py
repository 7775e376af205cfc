"""What the baseline does, against what a person computes for it."""

from __future__ import annotations

import pytest

from benchmarks.simulator.fixed_window import FixedWindow, Window
from benchmarks.simulator.simulation import Fate, Lane, Method, Outcome, Request, simulate
from warmpool.selection import Candidate

METHOD = Method("m", "batch")
MS = 1e-3
# 10 ms for one row of up to 2, 1 more for every further row and length
CANDIDATES = [
    Candidate(number, {"batch": rows, "seq": seq}, 1e3 * (10 + rows + seq))
    for number, (rows, seq) in enumerate((rows, seq) for rows in (1, 2, 4, 8) for seq in (2, 4, 8))
]


def played(window: Window, *arriving: tuple[float, int]) -> Outcome:
    requests = [Request(METHOD, {"batch": 1, "seq": seq}, 1, at_ms * MS, at_ms * MS + 1.0) for at_ms, seq in arriving]
    return simulate(FixedWindow(window, CANDIDATES, "batch"), Lane(way_us=0), requests)


def ran(outcome: Outcome) -> list[tuple[int, int, int]]:
    """Requests, rows and length of each run."""
    return [(len(run.requests), run.candidate.bucket["batch"], run.candidate.bucket["seq"]) for run in outcome.runs]


def ends_ms(outcome: Outcome) -> list[float]:
    return [round(one.ended_s / MS, 6) for one in outcome.requests]


def test_the_first_waits_for_the_window_and_takes_along_who_came_in_it() -> None:
    outcome = played(Window(5 * MS, 8), (0, 2), (3, 2), (4, 2), (6, 2))
    assert ran(outcome) == [(3, 4, 2), (1, 1, 2)]  # three rows are padded to four
    assert ends_ms(outcome) == [21, 21, 21, 21 + 13]  # 5 + 10 + 4 + 2; the last had waited longer than the window


def test_a_full_batch_does_not_wait() -> None:
    outcome = played(Window(500 * MS, 2), (0, 2), (3, 2))
    assert ends_ms(outcome) == [17, 17]


def test_without_a_window_an_idle_lane_starts_at_once() -> None:
    outcome = played(Window(0.0, 8), (0, 2), (1, 2), (2, 2))
    assert ran(outcome) == [(1, 1, 2), (2, 2, 2)]
    assert ends_ms(outcome) == [13, 27, 27]


def test_all_are_padded_to_the_longest_and_that_to_the_next_power_of_two_in_the_order_they_came() -> None:
    outcome = played(Window(1 * MS, 4), (0, 1), (0, 5), (0, 1), (0, 1), (0, 3), (0, 1))
    assert ran(outcome) == [(4, 4, 8), (2, 2, 4)]  # one long one makes all four long; nobody is overtaken


def test_who_waited_for_longer_than_the_timeout_is_dropped_and_not_run() -> None:
    outcome = played(Window(0.0, 1, timeout_s=20 * MS), (0, 2), (1, 2), (2, 2), (30, 2))
    assert [one.fate for one in outcome.requests] == [Fate.ANSWERED, Fate.ANSWERED, Fate.DROPPED, Fate.ANSWERED]
    assert ends_ms(outcome) == [13, 26, 26, 43]


def test_a_full_queue_refuses() -> None:
    outcome = played(Window(0.0, 8, queue_max=1), (0, 2), (1, 2), (2, 2))
    assert [one.fate for one in outcome.requests] == [Fate.ANSWERED, Fate.ANSWERED, Fate.REFUSED]


def test_a_batch_larger_than_what_is_compiled_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        FixedWindow(Window(0.0, 16), CANDIDATES, "batch")
