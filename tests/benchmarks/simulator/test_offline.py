from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.offline import best_offline
from warmpool.selection import Candidate


def compiled(costs_us: dict[tuple[int, int], float]) -> list[Candidate]:
    return [
        Candidate(number, {"batch": rows, "seq": seq}, cost)
        for number, ((rows, seq), cost) in enumerate(costs_us.items())
    ]


def least(lengths: list[int], costs_us: dict[tuple[int, int], float]) -> float:
    """The least total over all ways to split the requests into sets, each on its cheapest executable."""
    if not lengths:
        return 0.0
    best = float("inf")
    for count in range(len(lengths)):
        for others in itertools.combinations(range(1, len(lengths)), count):
            group = [lengths[0], *(lengths[place] for place in others)]
            covering = [cost for (rows, seq), cost in costs_us.items() if rows >= len(group) and seq >= max(group)]
            rest = [length for place, length in enumerate(lengths) if place and place not in others]
            best = min(best, min(covering, default=float("inf")) + least(rest, costs_us))
    return best


def test_the_long_one_runs_alone_and_the_short_ones_together() -> None:
    costs_us = {(1, 16): 2.0, (1, 64): 10.0, (4, 16): 3.0, (4, 64): 30.0}
    found = best_offline([10, 60, 11], compiled(costs_us), "batch", "seq")
    assert found.total_us == 13.0  # not 30, and not 14
    assert [(batch.places, batch.candidate.bucket) for batch in found.batches] == [
        ((1,), {"batch": 1, "seq": 64}),
        ((2, 0), {"batch": 4, "seq": 16}),
    ]


def test_what_a_batch_takes_beside_its_run_speaks_for_larger_ones() -> None:
    costs_us = {(1, 16): 2.0, (2, 16): 5.0}
    assert len(best_offline([5, 5], compiled(costs_us), "batch", "seq").batches) == 2
    found = best_offline([5, 5], compiled(costs_us), "batch", "seq", way_us=2.0)
    assert (len(found.batches), found.total_us) == (1, 7.0)


def test_without_a_length_only_rows_count() -> None:
    candidates = [Candidate(0, {"batch": 1}, 3.0), Candidate(1, {"batch": 4}, 5.0)]
    found = best_offline([1] * 9, candidates, "batch", "")
    assert found.total_us == 13.0
    assert sorted(place for batch in found.batches for place in batch.places) == list(range(9))


def test_what_nothing_covers_is_told() -> None:
    with pytest.raises(ValueError, match="the longest request has 17, the largest executable 16"):
        best_offline([17], compiled({(1, 16): 1.0}), "batch", "seq")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.dictionaries(
        st.tuples(st.integers(1, 3), st.integers(1, 4)), st.integers(1, 12).map(float), min_size=1, max_size=6
    ),
    st.integers(1, 12).map(float),
)
def test_nothing_is_cheaper_than_the_best_whatever_executables_cost(
    lengths: list[int], costs_us: dict[tuple[int, int], float], whole: float
) -> None:
    costs_us[1, 4] = whole  # something covers each
    found = best_offline(lengths, compiled(costs_us), "batch", "seq")
    assert found.total_us == least(lengths, costs_us)
    assert sorted(place for batch in found.batches for place in batch.places) == list(range(len(lengths)))
    assert sum(batch.candidate.cost_us for batch in found.batches) == found.total_us
    for batch in found.batches:
        assert len(batch.places) <= batch.candidate.bucket["batch"]
        assert max(lengths[place] for place in batch.places) <= batch.candidate.bucket["seq"]
