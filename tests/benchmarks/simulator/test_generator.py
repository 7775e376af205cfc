"""What is generated has the statistics that were measured of the traces it was fitted to; the files are not needed."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from benchmarks.simulator.arrivals import Arrivals
from benchmarks.simulator.generator import PROFILES, dispersion, generate, ks, variation


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_requests_and_another_seed_others(profile: str) -> None:
    assert generate(profile, 500, 3) == generate(profile, 500, 3)
    assert generate(profile, 500, 3).at_s != generate(profile, 500, 4).at_s
    assert generate(profile, 500, 3).lengths != generate(profile, 500, 4).lengths


def test_bursty_traffic_has_the_rate_the_bursts_and_the_lengths_of_the_code_trace() -> None:
    found = [generate("bursty", 9000, seed) for seed in range(8)]
    assert statistics.median(9000 / one.span_s for one in found) == pytest.approx(2.57, rel=0.25)
    assert statistics.median(map(variation, found)) == pytest.approx(13.15, rel=0.25)
    assert 35 < statistics.median(dispersion(one, 10.0) for one in found) < 90  # the trace: 71
    pooled = np.concatenate([one.lengths for one in found])
    # of the trace: 10, 25, 50, 75, 90 percent
    assert np.quantile(pooled, [0.1, 0.25, 0.5, 0.75, 0.9]) == pytest.approx([147, 578, 1469, 2744, 5188], rel=0.2)
    assert pooled.max() == 7437


def test_steady_traffic_is_nearly_without_memory() -> None:
    found = [generate("steady", 9000, seed) for seed in range(8)]
    assert statistics.median(9000 / one.span_s for one in found) == pytest.approx(5.53, rel=0.05)
    assert statistics.median(map(variation, found)) == pytest.approx(1.09, rel=0.05)
    assert 2 < statistics.median(dispersion(one, 10.0) for one in found) < 5  # the trace: 4
    pooled = np.concatenate([one.lengths for one in found])
    assert np.quantile(pooled, [0.1, 0.25, 0.5, 0.75, 0.9]) == pytest.approx([207, 396, 1020, 1189, 2735], rel=0.2)


def test_distance_variation_and_dispersion_are_what_hand_gives() -> None:
    assert ks([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert ks([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert ks([1, 2], [3, 4]) == 1
    assert variation(Arrivals("t", (0.0, 1.0, 2.0, 3.0), (1,) * 4)) == 0
    assert variation(Arrivals("t", (0.0, 0.0, 2.0), (1,) * 3)) == 1
    assert dispersion(Arrivals("t", (0.0, 0.1, 0.2, 1.5), (1,) * 4), 1.0) == pytest.approx(1 / 2)
