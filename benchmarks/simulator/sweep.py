"""What share of the requests is answered in time, from light load to overload, by the live code and by the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.simulator.arrivals import Arrivals
from benchmarks.simulator.cost_table import CostTable
from benchmarks.simulator.fixed_window import FixedWindow, Window
from benchmarks.simulator.live_queue import LiveQueue
from benchmarks.simulator.simulation import Lane, Method, Outcome, Request, simulate
from benchmarks.simulator.tuning import tuned
from benchmarks.simulator.workload import at_load, capacity, requests_of
from warmpool.selection import Candidate

LOADS = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
SHARE = 0.9
Plan = Sequence[tuple[int, int]]  # rows and length of each executable


@dataclass(frozen=True, slots=True)
class Settings:
    """What a sweep plays. Load 1 is what the best offline batching on `live` does, the way to the lane counted.

    Attributes:
        arrivals: In their own time, lengths within the model's.
        table: What runs cost.
        deadline_s: Of every request.
        live: Executables of the live code.
        baseline: Executables of the fixed window.
        seed: Of the noise.
    """

    arrivals: Arrivals
    table: CostTable
    deadline_s: float
    live: Plan
    baseline: Plan
    seed: int = 0

    def lane(self) -> Lane:
        return Lane(self.table.noise, self.seed)

    @property
    def full_per_s(self) -> float:
        return capacity(self.arrivals, self.table.candidates(self.live), self.table)


@dataclass(frozen=True, slots=True)
class Point:
    """Both at one load."""

    load: float
    window: Window
    baseline: Outcome
    live: Outcome

    @property
    def ratio(self) -> float:
        """Answers in time, live over baseline: of the same requests in the same time."""
        return self.live.share / self.baseline.share


def sweep(
    settings: Settings,
    full_per_s: float,
    loads: Sequence[float] = LOADS,
    windows: Mapping[float, Window] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """Both at every load.

    Args:
        settings: What is played.
        full_per_s: Requests a second at load 1.
        loads: Ascending.
        windows: What the baseline is set to at each load; by default it is tuned anew at each.
        say: Is told of every load.
    """
    method = Method(settings.table.model, settings.table.batch)
    candidates = settings.table.candidates(settings.baseline)
    points = []
    for load in loads:
        arrivals = at_load(settings.arrivals, load, full_per_s)

        def requests(arrivals: Arrivals = arrivals) -> list[Request]:
            return requests_of(arrivals, method, settings.table.length, settings.deadline_s)

        if windows is None:
            found = tuned(requests, settings.lane, candidates, settings.table, settings.deadline_s)
            window, baseline = found.window, found.outcome
        else:
            window = windows[load]
            baseline = fixed(window, candidates, settings, requests())
        point = Point(load, window, baseline, live(settings, requests(), method))
        points.append(point)
        say(f"load {load:g}: {baseline.share:.3f} and {point.live.share:.3f} in time, {point.ratio:.2f} times as many")
    return points


def fixed(window: Window, candidates: Sequence[Candidate], settings: Settings, requests: list[Request]) -> Outcome:
    """The baseline with given settings."""
    return simulate(FixedWindow(window, candidates, settings.table.batch), settings.lane(), requests)


def live(settings: Settings, requests: list[Request], method: Method) -> Outcome:
    """The live code."""
    return simulate(LiveQueue({method: settings.table.candidates(settings.live)}), settings.lane(), requests)


def carried(loads: Sequence[float], shares: Sequence[float], share: float = SHARE) -> float:
    """The load up to which at least `share` is answered in time, on straight lines between those that were played.

    It is the goodput that Y. Zhong et al. define ("DistServe", OSDI 2024): the most a server takes while it keeps its
    promise to 90 % of the requests. The first load has to be carried; beyond the last nothing is claimed.
    """
    assert shares[0] >= share, shares
    for place, one in enumerate(shares):
        if one < share:
            part = (shares[place - 1] - share) / (shares[place - 1] - one)
            return loads[place - 1] + part * (loads[place] - loads[place - 1])
    return loads[-1]
