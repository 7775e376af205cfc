"""The slowest of a thousand requests of several phases is that of all of them, not a middle of their own."""

import random

import pytest

from benchmarks.figures import percentile
from benchmarks.phase import Phase, p999_of_all_s


def phase(latencies_s):
    return Phase.of([{"sent_s": 1.0, "answered_s": 1.0 + one, "late_s": 0.0} for one in latencies_s], {})


@pytest.mark.parametrize("share", [0.0, 0.001, 0.015])
def test_it_is_that_of_all_latencies_however_they_are_spread(share):
    """In one phase out of three a share of them is slow."""
    drawn = random.Random(1)
    lists = [[drawn.expovariate(1e3) for _ in range(count)] for count in (2000, 3000, 5000)]
    lists[1] = [one + (10.0 if number < share * 3000 else 0.0) for number, one in enumerate(lists[1])]
    together = percentile((one for latencies in lists for one in latencies), 0.999)
    assert p999_of_all_s(list(map(phase, lists))) == pytest.approx(together)


def test_what_was_kept_of_each_has_to_be_enough_for_all():
    with pytest.raises(ValueError, match="30 phases are too many"):
        p999_of_all_s([phase([0.001] * 1000)] * 30)
