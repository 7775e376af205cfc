"""Seeded arrivals for those who have no trace: bursts and long tails as in two that were recorded.

Gaps between requests come from a hidden Markov chain whose phases are exponential (a Markov-modulated hyperexponential
process), lengths from a mixture of lognormals. Both were fitted to the traces by maximum likelihood: the chain with
Baum and Welch's algorithm (L. Baum et al., "A maximization technique occurring in the statistical analysis of
probabilistic functions of Markov chains", 1970), the mixture by expectation and maximisation. `Profile` says how good
the fits are: `ks` is the Kolmogorov-Smirnov distance, the largest difference of two distribution functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Profile:
    """Parameters of one kind of traffic.

    Attributes:
        gaps_s: The mean of each phase, in seconds.
        moves: Which phase follows which, a row of probabilities for each.
        weights: Of the lognormals.
        means: Of the logarithms of lengths.
        deviations: Their standard deviations.
        length_max: Longer ones are clipped.
    """

    gaps_s: tuple[float, ...]
    moves: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    length_max: int


PROFILES = {
    # azure_llm_2023_code. Gaps: CV 11.8 (the trace: 13.2), ks 0.10, as real ones pile up at 0.1 s; requests of 10 s
    # vary by 50 times what Poisson arrivals would (71), those of a minute 120 times (160). Lengths: ks 0.03.
    "bursty": Profile(
        gaps_s=(0.000103, 0.002121, 0.13533, 1.2202, 40.698),
        moves=(
            (0.065, 0.3618, 0.5151, 0.0455, 0.0127),
            (0.0927, 0.3427, 0.5477, 0.0126, 0.0043),
            (0.069, 0.2293, 0.675, 0.0191, 0.0075),
            (0.1315, 0.1241, 0.6628, 0.0815, 0.0),
            (0.0419, 0.1528, 0.8053, 0.0, 0.0),
        ),
        weights=(0.751, 0.249),
        means=(7.601, 5.179),
        deviations=(0.751, 1.152),
        length_max=7437,
    ),
    # azure_llm_2023_conv. Gaps: CV 1.05 (1.09), ks 0.01; requests of 10 s vary 3.2 times (4.0). Lengths: ks 0.05.
    "steady": Profile(
        gaps_s=(0.000762, 0.14724, 0.225335),
        moves=((0.0022, 0.8153, 0.1825), (0.0194, 0.9785, 0.0021), (0.0063, 0.0014, 0.9923)),
        weights=(0.172, 0.23, 0.407, 0.191),
        means=(8.008, 5.987, 6.997, 5.401),
        deviations=(0.376, 0.038, 0.101, 0.961),
        length_max=14050,
    ),
}


def generate(profile: str, count: int, seed: int) -> Arrivals:
    """So many requests of a profile; the same seed gives the same ones."""
    parameters = PROFILES[profile]
    generator = np.random.default_rng(seed)
    gaps_s = _gaps_s(parameters, count, generator)
    gaps_s[0] = 0.0
    which = generator.choice(len(parameters.weights), size=count, p=_normed(parameters.weights))
    logs = np.asarray(parameters.means)[which] + np.asarray(parameters.deviations)[which] * generator.normal(size=count)
    lengths = np.clip(np.rint(np.exp(logs)), 1, parameters.length_max).astype(int)
    at_s = np.cumsum(gaps_s)
    return Arrivals(
        f"generated {profile}", tuple(at_s.tolist()), tuple(lengths.tolist()), f"{count} requests, seed {seed}"
    )


def ks(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference between two samples' distribution functions, 0 to 1."""
    points = np.sort(np.concatenate([one, other]))
    shares = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def variation(arrivals: Arrivals) -> float:
    """The coefficient of variation of the gaps: 1 for Poisson arrivals."""
    gaps_s = np.diff(arrivals.at_s)
    return float(gaps_s.std() / gaps_s.mean())


def dispersion(arrivals: Arrivals, window_s: float) -> float:
    """Variance over mean of the requests in windows of a length: 1 for Poisson arrivals."""
    counts = np.bincount((np.asarray(arrivals.at_s) / window_s).astype(int))
    return float(counts.var() / counts.mean())


def _gaps_s(parameters: Profile, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
    moves = np.cumsum([_normed(row) for row in parameters.moves], axis=1)
    draws = generator.random(count)
    phases = np.zeros(count, int)
    for place in range(1, count):
        phases[place] = min(int(np.searchsorted(moves[phases[place - 1]], draws[place])), len(moves) - 1)
    return np.asarray(parameters.gaps_s)[phases] * generator.exponential(size=count)


def _normed(shares: Sequence[float]) -> NDArray[Any]:
    """Rounded probabilities that sum to 1 again."""
    return np.asarray(shares) / sum(shares)
