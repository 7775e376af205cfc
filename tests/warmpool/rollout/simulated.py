"""Traffic of two versions of a model, simulated second by second: bursts, heavy tails, outages, errors, crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warmpool.rollout.judge import Judge, Policy, Verdict
from warmpool.rollout.tally import Counts

BATCH_MAX = 8


@dataclass(frozen=True, kw_only=True)
class World:
    """What both versions live in. Rates are a second's, probabilities a request's or, where it says so, a second's."""

    rate: float = 20.0
    share: float = 0.1
    mirrored: float = 0.05
    error: float = 0.001
    median_us: float = 5_000.0
    spread: float = 0.5  # of the logarithm
    tail: float = 0.01  # of requests that take as long as a Pareto distribution of index 1.1 says
    burst: float = 0.02  # of a second that one begins: ten times the rate, everything slower, for some seconds
    outage: float = 0.001  # of a second that one begins: nearly everything fails
    kill: float = 0.0005  # of a batch, that somebody kills its lane
    growth_bytes: float = 4096.0  # a batch, of any version


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with the canary, 0 or 1 for nothing. Probabilities are a request's, `crash` a batch's."""

    begins: int = 0
    error: float = 0.0
    not_finite: float = 0.0
    differing: float = 0.0
    slower: float = 1.0
    stalls: float = 0.0  # requests that take twenty times as long
    crash: float = 0.0
    leak_bytes: int = 0  # a batch


@dataclass
class Simulation:
    """One rollout in such a world."""

    world: World
    seed: int
    fault: Fault = field(default_factory=Fault)
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.judge = Judge(self.policy)
        self.given = 0
        self.burst_s = self.outage_s = 0

    def run(
        self, seconds: int, until: Callable[[Verdict], Any] = lambda verdict: verdict.action == "rollback"
    ) -> Verdict:
        """Live through so many seconds, or until the verdict is what is waited for; the last verdict."""
        verdict = self.judge.verdict(0)
        for second in range(seconds):
            self.judge.add(second, *self._second(second))
            verdict = self.judge.verdict(second + 1)
            if until(verdict):
                break
        return verdict

    def _second(self, second: int) -> tuple[Counts, Counts]:
        world, random = self.world, self.random
        self.burst_s = int(random.integers(2, 8)) if random.random() < world.burst else max(0, self.burst_s - 1)
        self.outage_s = int(random.integers(1, 4)) if random.random() < world.outage else max(0, self.outage_s - 1)
        count = int(random.poisson(world.rate * (10 if self.burst_s else 1)))
        places = np.arange(self.given, self.given + count)
        self.given += count
        to_canary = np.floor((places + 1) * world.share) > np.floor(places * world.share)
        fault = self.fault if second >= self.fault.begins else Fault()
        return (
            self._counts(int((~to_canary).sum()), Fault(), 0),
            self._counts(int(to_canary.sum()), fault, int(random.binomial(count, world.mirrored))),
        )

    def _counts(self, requests: int, fault: Fault, mirrored: int) -> Counts:
        world, random = self.world, self.random
        counts = Counts(
            compared=mirrored,
            differing=int(random.binomial(mirrored, max(fault.differing, 1e-5))),
            not_finite=int(random.binomial(mirrored, fault.not_finite)),
        )
        if not requests:
            return counts
        batch = min(BATCH_MAX, 1 + requests // 10)
        slow = 5.0 if self.burst_s else 1.0
        median = world.median_us * fault.slower
        took = random.lognormal(np.log(median * slow), world.spread, requests)
        took = np.where(random.random(requests) < world.tail, median * (1 + random.pareto(1.1, requests)), took)
        took = np.where(random.random(requests) < fault.stalls, 20 * took, took)
        fails = 0.9 if self.outage_s else world.error + fault.error
        batch_of = np.arange(requests) // batch
        batches = int(batch_of[-1]) + 1
        failed = random.random(requests) < fails
        failed |= (random.random(batches) < world.error)[batch_of]  # what fails a batch fails all of it
        crashed = random.random(batches) < world.kill + fault.crash
        unanswered = random.random(batches) < 0.1  # most are answered by another lane
        failed = np.where(crashed[batch_of], unanswered[batch_of], failed)
        ran_us = random.lognormal(np.log(median / 4), 0.2, batches)
        grown = random.exponential(world.growth_bytes, batches).astype(int) + fault.leak_bytes
        counts.crashes = int(crashed.sum())
        counts.batches = counts.crashes
        counts.grown_bytes = int(grown[~crashed].sum())
        for index in np.flatnonzero(~crashed).tolist():
            counts.ran("predict", f"batch={min(batch, requests - index * batch)}", float(ran_us[index]))
        for time_us, wrong in zip(took.tolist(), failed.tolist(), strict=True):
            counts.request("predict", time_us, failed=wrong)
        return counts
