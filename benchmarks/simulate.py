"""What the scheduling code makes of recorded traffic, on a virtual clock, against the best that others could.

Costs are those that `benchmarks.measured_costs` took of the embed and digits examples and stored, so the figures are
the same on every machine, but for how fast the clock runs. Traffic is read from the folder that `--traces` names;
without one it is generated (`benchmarks.simulator.generator`), and the figures say so. Each round has another seed of
the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from benchmarks.figures import Figure, Report, Target
from benchmarks.simulator.arrivals import Arrivals, read_trace
from benchmarks.simulator.chart import Chart, Line
from benchmarks.simulator.cost_table import STORED, CostTable, read_costs
from benchmarks.simulator.generator import generate
from benchmarks.simulator.goodput import Contest, contest, figures_of
from benchmarks.simulator.plans import fitted_plan, half_as_many, padding_ratio
from benchmarks.simulator.saturation import grid, saturate
from benchmarks.simulator.simulation import Run
from benchmarks.simulator.sweep import LOADS, SHARE, Settings
from benchmarks.stores import Folders

LENGTHS = (16, 32, 64, 128, 256)
POWERS = grid((1, 2, 4, 8), LENGTHS)  # what the embed example is published for
MORE_POWERS = grid((1, 2, 4, 8, 16), LENGTHS)  # what the baseline may use
DEADLINE_S = 0.25  # about ten times what the longest request takes alone
SEEN_LOAD = 0.2
SHOWN_LOADS = (0.1, 0.3, 0.5, 1.0)
GENERATED = 6000  # requests
CLIENTS = (32, 64)
DIGITS = 20_000  # requests
P99_S_MAX = {"embed": 1.0, "digits": 0.1}
BOUNDARIES = (4, 6, 8, 12, 16)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Arrivals within the model's lengths: bursts, the steadier kind, and more of which the lengths alone are used."""

    bursty: Arrivals
    steady: Arrivals
    others: list[Arrivals] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path | None) -> Traffic:
        """Recorded if there is a folder, generated else. Raises TraceError."""
        if folder is None:
            bursty, steady = (generate(profile, GENERATED, 0).within(LENGTHS[-1]) for profile in ("bursty", "steady"))
            return cls(bursty, steady)
        names = ("azure_llm_2023_code", "azure_llm_2023_conv", "mooncake_conversation")
        bursty, steady, *others = (read_trace(folder, name).within(LENGTHS[-1]) for name in names)
        return cls(bursty, steady, others)

    @property
    def all(self) -> list[Arrivals]:
        return [self.bursty, self.steady, *self.others]


def run(folders: Folders, rounds: int, say: Say) -> Report:
    """Play everything. Raises TraceError where a trace cannot be read."""
    embed, digits = (read_costs(STORED / f"{name}.json") for name in ("embed", "digits"))
    traffic = Traffic.of(folders.traces)
    contests = goodput(traffic, embed, rounds, say)
    first = contests[0]
    recorded = folders.traces is not None  # the target is for the recorded bursts
    figures = figures_of(first, SHOWN_LOADS, Target("at least", 1.5) if recorded else None)
    for one in contests[1:]:
        figures += figures_of(one, (), None)
    figures += saturated(embed, traffic.bursty.lengths, rounds) + saturated(digits, [1] * DIGITS, rounds)
    say("simulate: throughput at saturation")
    figures += planned(embed, traffic, rounds) + clock(first)
    say("simulate: fitted plans")
    raw = {
        "traffic": [f"{one.name}: {one.done}" for one in traffic.all],
        "costs": {table.model: {**table.where, "noise": msgspec.to_builtins(table.noise)} for table in (embed, digits)},
        "contests": {one.title: one.document() for one in contests},
    }
    return Report("simulated traffic, the live scheduling code", figures, raw, pictures(contests))


def goodput(traffic: Traffic, table: CostTable, seeds: int, say: Say) -> list[Contest]:
    """Bursts first, with powers of two on both sides; then with fitted executables, and other settings.

    Load 1 is for all of them what the best offline batching of the same requests does on powers of two.
    """
    name = traffic.bursty.name
    main = Settings(traffic.bursty, table, DEADLINE_S, POWERS, MORE_POWERS)
    full_per_s = main.full_per_s
    found = contest(f"{name}, {DEADLINE_S * 1e3:.0f} ms", main, full_per_s, LOADS, seeds, say)
    seen = first_half(found, SEEN_LOAD)

    def on_fitted(count: int) -> Contest:
        plan = fitted_plan(seen, table, POWERS, count)
        title = f"the same, {len(plan)} executables fitted to its first half at load {SEEN_LOAD:g}"
        return contest(title, replace(main, live=plan), full_per_s, LOADS, seeds, say, found.windows)

    steady = Settings(traffic.steady, table, DEADLINE_S, POWERS, MORE_POWERS)

    def again(title: str, settings: Settings, loads: Sequence[float], per_s: float = full_per_s) -> Contest:
        return contest(title, settings, per_s, loads, seeds, say)

    return [
        found,
        on_fitted(len(POWERS)),
        on_fitted(len(POWERS) // 2),
        again(
            "the same, fixed window on the same executables",
            replace(main, baseline=POWERS),
            (0.06, 0.1, 0.15, 0.2, 0.3, 0.5),
        ),
        again(f"{name}, 100 ms", replace(main, deadline_s=0.1), (0.01, 0.02, 0.03, 0.06, 0.1, 0.15, 0.2)),
        again(f"{name}, 1000 ms", replace(main, deadline_s=1.0), (0.06, 0.1, 0.15, 0.2, 0.3, 0.5)),
        again(
            f"{traffic.steady.name}, {DEADLINE_S * 1e3:.0f} ms",
            steady,
            (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2),
            steady.full_per_s,
        ),
    ]


def first_half(found: Contest, load: float) -> list[Run]:
    """What the live code ran at a load until half of the requests had come."""
    outcome = found.rounds[0][found.loads.index(load)].live
    middle_s = outcome.requests[len(outcome.requests) // 2].arrived_s
    return [run for run in outcome.runs if run.requests[0].arrived_s < middle_s]


def saturated(table: CostTable, lengths: Sequence[int], seeds: int) -> list[Figure]:
    """The best throughput within the limit, over the best offline batching on the same executables."""
    plan = POWERS if table.length else grid(table.rows, [1])
    limit_s = P99_S_MAX[table.model]
    played = [
        [saturate(lengths, table.candidates(plan), table, clients, seed) for clients in CLIENTS]
        for seed in range(seeds)
    ]
    best = [max((one for one in each if one.p99_s <= limit_s), key=lambda one: one.per_s) for each in played]
    title = f"{table.model}, {' or '.join(map(str, CLIENTS))} clients, p99 within {limit_s * 1e3:.0f} ms"
    return [
        Figure(f"{title}: over best offline", "x", tuple(one.over_best for one in best), Target("at least", 0.9)),
        Figure("  answers a second", "/s", tuple(one.per_s for one in best)),
        Figure("  p99", "ms", tuple(one.p99_s * 1e3 for one in best)),
    ]


def planned(table: CostTable, traffic: Traffic, seeds: int) -> list[Figure]:
    """Fitted plans in the half of each trace that they were not fitted to."""
    figures = [
        Figure(
            f"{one.name}, unseen half: padding over the best, most of {', '.join(map(str, BOUNDARIES))} boundaries",
            "x",
            (max(padding_ratio(one, k, LENGTHS[-1]) for k in BOUNDARIES),),
            Target("at most", 1.25),
        )
        for one in traffic.all
    ]
    for one in (traffic.bursty, traffic.steady):
        halves = [half_as_many(one, table, POWERS, seed) for seed in range(seeds)]
        title = (
            f"{one.name}, unseen half: time on {len(POWERS) // 2} fitted executables over {len(POWERS)} powers of two"
        )
        figures.append(Figure(title, "x", tuple(half.time_ratio for half in halves), Target("at most", 1.0)))
    return figures


def clock(found: Contest) -> list[Figure]:
    """How much faster than the trace's own time it was played, and than the time that it was compressed to."""
    span_s = found.settings.arrivals.span_s
    points = found.rounds[0]
    return [
        Figure(
            f"virtual clock: the trace's own {span_s:.0f} s a second, warmpool",
            "x",
            tuple(span_s / one.live.wall_s for one in points),
        ),
        Figure("  fixed window", "x", tuple(span_s / one.baseline.wall_s for one in points)),
        Figure("  time as compressed to each load, warmpool", "x", tuple(one.live.faster for one in points)),
    ]


def pictures(contests: Sequence[Contest]) -> dict[str, str]:
    """Answers in time over load: the share of all, and a second."""
    first, *fitted = contests[:3]
    lines = [
        (first, "baseline", "fixed window, tuned at each load"),
        (first, "live", f"warmpool, {len(first.settings.live)} powers of two"),
        *((one, "live", f"warmpool, {len(one.settings.live)} fitted") for one in fitted),
    ]
    x_title = "mean load (1: what the best offline batching does)"
    shares = [Line(name, one.loads, one.shares(who)) for one, who, name in lines]
    per_s = [Line(name, one.loads, one.per_s(who)) for one, who, name in lines]
    return {
        "share": Chart(f"{first.title}: share answered in time", x_title, shares, (SHARE,)).svg(),
        "goodput": Chart(f"{first.title}: answers in time a second", x_title, per_s).svg(),
    }
