"""Measured run times of every bucket of a dense plan, where they were measured, and how much single runs differ.

What any plan within the dense one costs is looked up here, so that no figure rests on a run time that was made up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from warmpool.selection import Candidate

STORED = Path(__file__).resolve().parent / "costs"


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How single runs differ from the median: a lognormal factor, and rare stalls that multiply it once more.

    `sigma` is the standard deviation of the factor's logarithm, `stall_share` the share of runs that stall, and
    `stall_factor` what they take over the others, in the mean.
    """

    sigma: float
    stall_share: float
    stall_factor: float

    def factor(self, generator: random.Random) -> float:
        """One run's time over the median. Stalls are exponential above 1, with the mean that was seen."""
        factor = math.exp(generator.gauss(0.0, self.sigma))
        if generator.random() < self.stall_share:
            factor *= 1.0 + generator.expovariate(1.0 / (self.stall_factor - 1.0))
        return factor


NO_NOISE = Noise(0.0, 0.0, 2.0)


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bucket, and the median of its runs in microseconds."""

    bucket: dict[str, int]
    cost_us: float


class CostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run times of one method. `batch` names the dimension of rows, `where` is the machine and how they were taken."""

    model: str
    batch: str
    where: dict[str, Any]
    noise: Noise
    buckets: tuple[Measured, ...]

    @property
    def length(self) -> str:
        """The dimension besides the rows; empty where there is none."""
        return next((name for name in self.buckets[0].bucket if name != self.batch), "")

    @property
    def rows(self) -> list[int]:
        """The numbers of rows that were measured, ascending."""
        return sorted({one.bucket[self.batch] for one in self.buckets})

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured, ascending; just 1 where there is no such dimension."""
        return sorted({one.bucket.get(self.length, 1) for one in self.buckets})

    def candidates(self, plan: Iterable[tuple[int, int]]) -> list[Candidate]:
        """The executables of a plan: rows and length of each. Raises KeyError where one was not measured."""
        measured = {(one.bucket[self.batch], one.bucket.get(self.length, 1)): one for one in self.buckets}
        return [Candidate(number, measured[sizes].bucket, measured[sizes].cost_us) for number, sizes in enumerate(plan)]

    @property
    def measured_us(self) -> dict[tuple[int, int], float]:
        """By rows and length."""
        return {(one.bucket[self.batch], one.bucket.get(self.length, 1)): one.cost_us for one in self.buckets}


def read_costs(file: Path) -> CostTable:
    """A stored table. Raises ValueError where it is none; the message names the file and the field."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=CostTable)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file}: {error}") from None


def noise_of(runs_us: Mapping[Any, Sequence[float]], stall: float = 2.0) -> Noise:
    """The noise of repeated runs, bucket by bucket: what takes `stall` times the median or more is a stall."""
    factors = np.concatenate([np.asarray(runs) / np.median(runs) for runs in runs_us.values()])
    calm, stalls = factors[factors < stall], factors[factors >= stall]
    mean = float(stalls.mean()) if len(stalls) else 2.0
    return Noise(round(float(np.log(calm).std()), 4), round(len(stalls) / len(factors), 5), round(mean, 2))
