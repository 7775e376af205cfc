"""Goodput: what is answered in time under bursts, the live code's over that of the best-tuned fixed window."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.figures import Figure, Target, ratios
from benchmarks.simulator.fixed_window import Window
from benchmarks.simulator.sweep import SHARE, Point, Settings, carried, sweep

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contest:
    """Both at several loads, once for every seed of the noise.

    Attributes:
        title: What is played.
        settings: How.
        rounds: The points of each seed.
    """

    title: str
    settings: Settings
    rounds: tuple[tuple[Point, ...], ...]

    @property
    def loads(self) -> list[float]:
        return [point.load for point in self.rounds[0]]

    def carried(self) -> tuple[list[float], list[float]]:
        """The load that each carries, the baseline's and the live one's, for every seed."""
        baseline, live = (
            [carried(self.loads, [getattr(point, who).share for point in points]) for points in self.rounds]
            for who in ("baseline", "live")
        )
        return baseline, live

    @property
    def windows(self) -> dict[float, Window]:
        """What the baseline was set to at each load."""
        return {point.load: point.window for point in self.rounds[0]}

    def shares(self, who: str) -> list[float]:
        """The share answered in time at each load, the median of the seeds."""
        return self._medians(lambda point: float(getattr(point, who).share))

    def per_s(self, who: str) -> list[float]:
        """Answers in time a second at each load, the median of the seeds."""
        return self._medians(lambda point: float(getattr(point, who).goodput))

    def _medians(self, value: Callable[[Point], float]) -> list[float]:
        return [statistics.median(map(value, points)) for points in zip(*self.rounds, strict=True)]

    def document(self) -> list[dict[str, Any]]:
        """Every point of the first seed, for the raw results."""
        return [
            {
                "load": point.load,
                "window": asdict(point.window),
                **{
                    who: {
                        "share": outcome.share,
                        "per_s": outcome.goodput,
                        "virtual_s": outcome.end_s,
                        "wall_s": outcome.wall_s,
                        "busy": outcome.busy_s / outcome.end_s,
                        **outcome.counts,
                    }
                    for who, outcome in (("baseline", point.baseline), ("live", point.live))
                },
            }
            for point in self.rounds[0]
        ]


def contest(
    title: str,
    settings: Settings,
    full_per_s: float,
    loads: Sequence[float],
    seeds: int,
    say: Say,
    windows: Mapping[float, Window] | None = None,
) -> Contest:
    """Both at every load, with every seed.

    Args:
        title: Of it.
        settings: What is played.
        full_per_s: Requests a second at load 1.
        loads: Ascending.
        seeds: How many; one line is said for each after the first.
        say: Is told of every load with the first seed, too.
        windows: What the baseline is set to; by default it is tuned with the first seed.
    """
    first = sweep(settings, full_per_s, loads, windows, lambda line: say(f"{title}: {line}"))
    found = {point.load: point.window for point in first}
    rounds = [tuple(first)]
    for seed in range(1, seeds):
        rounds.append(tuple(sweep(replace(settings, seed=seed), full_per_s, loads, found)))
        say(f"{title}: seed {seed}")
    return Contest(title, settings, tuple(rounds))


def figures_of(found: Contest, shown_loads: Sequence[float], target: Target | None) -> list[Figure]:
    """Carried load of both and their ratio; answers in time at some loads, live over baseline."""
    baseline, live = found.carried()
    percent = f"{SHARE:.0%}"
    return [
        Figure(f"{found.title}: load with {percent} in time, fixed window", "", tuple(baseline)),
        Figure("  the same, warmpool", "", tuple(live)),
        ratios("  warmpool over fixed window", live, baseline, target),
        *(
            ratios(
                f"  answers in time a second at load {load:g}",
                [points[found.loads.index(load)].live.share for points in found.rounds],
                [points[found.loads.index(load)].baseline.share for points in found.rounds],
            )
            for load in shown_loads
        ),
    ]
