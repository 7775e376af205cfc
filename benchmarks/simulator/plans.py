"""Fitted plans on traffic that they have not seen: those of the first half of a trace, in the second."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulator.arrivals import Arrivals
from benchmarks.simulator.cost_table import CostTable
from benchmarks.simulator.saturation import saturate
from benchmarks.simulator.simulation import Run
from warmpool.fitting.costs import MeasuredCost
from warmpool.fitting.grids import Limits
from warmpool.fitting.plan_fit import fit_buckets
from warmpool.fitting.segments import fit_boundaries
from warmpool.fitting.unseen import with_unseen
from warmpool.fitting.usage import elements, padding

CLIENTS = 64


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan that was fitted, and the time a request takes on it over the time on powers of two, in the unseen half."""

    plan: list[tuple[int, int]]
    time_ratio: float


def padding_ratio(arrivals: Arrivals, k: int, longest: int) -> float:
    """Elements of padding in the second half, with k boundaries fitted to the first, over the least that k can have."""
    first, second = (np.asarray(half.lengths) for half in arrivals.halves())
    seen, weights = with_unseen(first, np.ones(len(first)), [longest])
    ours = fit_boundaries(seen, weights, k, elements, largest=longest)
    ones = np.ones(len(second))
    best = fit_boundaries(second, ones, k, elements, largest=longest)
    return padding(second, ones, (ours,)).wasted / padding(second, ones, (best,)).wasted


def fitted_plan(
    runs: Sequence[Run], table: CostTable, plan: Sequence[tuple[int, int]], count: int
) -> list[tuple[int, int]]:
    """So many buckets of the sizes that were measured, fitted to batches that ran.

    Args:
        runs: What ran on `plan`.
        table: The costs.
        plan: What was compiled then; the least rows, and the largest bucket, stay the same.
        count: How many buckets there may be.
    """
    shapes = [
        (_up(table.rows, len(run.requests)), _up(table.lengths, request.need[table.length]))
        for run in runs
        for request in run.requests
    ]
    weights = [1 / len(run.requests) for run in runs for _ in run.requests]
    top = max(rows for rows, _ in plan), max(length for _, length in plan)
    seen, amounts = with_unseen(shapes, weights, top, axes=(1,))
    rounded = [(_up(table.rows, int(rows)), _up(table.lengths, int(length))) for rows, length in seen]
    cost = MeasuredCost(table.measured_us)
    fit = fit_buckets(rounded, amounts, count, cost, Limits((min(rows for rows, _ in plan), None), top))
    return [(int(rows), int(length)) for rows, length in fit.buckets]


def half_as_many(arrivals: Arrivals, table: CostTable, powers: Sequence[tuple[int, int]], seed: int) -> Fitted:
    """Half as many fitted executables as there are powers of two, against these, on the half that was not seen."""
    first, second = arrivals.halves()
    seen = saturate(first.lengths, table.candidates(powers), table, CLIENTS, seed).outcome.runs
    plan = fitted_plan(seen, table, powers, len(powers) // 2)
    ours, theirs = (
        saturate(second.lengths, table.candidates(one), table, CLIENTS, seed).per_s for one in (plan, powers)
    )
    return Fitted(plan, theirs / ours)


def _up(sizes: Sequence[int], size: int) -> int:
    return sizes[min(bisect_left(sizes, size), len(sizes) - 1)]
