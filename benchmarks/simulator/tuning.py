"""The baseline at its best: every setting of a grid is played on the very trace and load that it is compared on.

An operator would not know them beforehand; whatever this flatters, it is the baseline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.simulator.cost_table import CostTable
from benchmarks.simulator.fixed_window import FixedWindow, Window
from benchmarks.simulator.simulation import Lane, Outcome, Request, simulate
from warmpool.selection import Candidate

DELAYS_S = (0.0, 0.002, 0.01)
TIMEOUTS = (0.5, 0.75, 0.9, 1.0)  # of the deadline
QUEUES_MAX = (None, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings, and what they gave."""

    window: Window
    outcome: Outcome


def tuned(
    requests: Callable[[], list[Request]],
    lane: Callable[[], Lane],
    candidates: Sequence[Candidate],
    table: CostTable,
    deadline_s: float,
) -> Tuned:
    """The settings with the most answers in time: window, batch and timeout all together, then timeout and bound.

    Args:
        requests: Makes them anew.
        lane: Makes one anew.
        candidates: What is compiled.
        table: Where they are from.
        deadline_s: What every request has.
    """

    def played(window: Window) -> Tuned:
        return Tuned(window, simulate(FixedWindow(window, candidates, table.batch), lane(), requests()))

    rows = sorted({one.bucket[table.batch] for one in candidates})
    first = [
        played(Window(delay_s, batch_max, timeout * deadline_s))
        for delay_s, batch_max, timeout in itertools.product(DELAYS_S, rows, TIMEOUTS)
    ]
    best = max(first, key=lambda one: one.outcome.share).window
    second = [
        played(Window(best.delay_s, best.batch_max, timeout * deadline_s, queue_max))
        for timeout, queue_max in itertools.product(TIMEOUTS, QUEUES_MAX)
    ]
    return max(second, key=lambda one: one.outcome.share)
