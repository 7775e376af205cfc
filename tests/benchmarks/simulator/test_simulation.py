"""The clock and the accounts, on schedules that can be written down by hand, and on random ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.cost_table import NO_NOISE, Noise
from benchmarks.simulator.fixed_window import FixedWindow, Window
from benchmarks.simulator.generator import generate
from benchmarks.simulator.live_queue import LiveQueue
from benchmarks.simulator.simulation import Fate, Lane, Method, Outcome, Queue, Request, Run, simulate
from benchmarks.simulator.workload import requests_of
from warmpool.scheduling.work import Policy
from warmpool.selection import Candidate

METHOD = Method("m", "batch")
MS = 1e-3


def compiled(costs_ms: dict[tuple[int, int], float]) -> list[Candidate]:
    return [
        Candidate(number, {"batch": rows, "seq": seq}, cost * 1e3)
        for number, ((rows, seq), cost) in enumerate(costs_ms.items())
    ]


def request(at_ms: float, seq: int = 1, within_ms: float = 1000.0) -> Request:
    return Request(METHOD, {"batch": 1, "seq": seq}, 1, at_ms * MS, (at_ms + within_ms) * MS)


class OneByOne:
    """First come, first served; nothing is refused, and whoever is past the deadline is dropped."""

    def __init__(self, candidate: Candidate) -> None:
        self.waiting: deque[Request] = deque()
        self.candidate = candidate
        self.took_us: list[float] = []

    def arrive(self, request: Request, now_s: float) -> bool:
        assert now_s == request.arrived_s
        self.waiting.append(request)
        return True

    def start(self, now_s: float) -> tuple[Run | None, Sequence[Request]]:
        dropped = []
        while self.waiting and self.waiting[0].deadline_s < now_s:
            dropped.append(self.waiting.popleft())
        return (Run([self.waiting.popleft()], self.candidate) if self.waiting else None), dropped

    def wake_s(self, now_s: float) -> float:
        return inf

    def ended(self, run: Run, took_us: float) -> None:
        self.took_us.append(took_us)


def ends(outcome: Outcome) -> list[tuple[Fate | None, float]]:
    return [(one.fate, round(one.ended_s / MS, 6)) for one in outcome.requests]


def test_one_lane_runs_one_thing_at_a_time_and_every_end_is_as_computed_by_hand() -> None:
    queue = OneByOne(Candidate(0, {"batch": 1, "seq": 1}, 10e3))
    arriving = [request(0), request(4), request(5, within_ms=20), request(6, within_ms=13), request(50)]
    outcome = simulate(queue, Lane(way_us=0), arriving)
    assert ends(outcome) == [
        (Fate.ANSWERED, 10),
        (Fate.ANSWERED, 20),
        (Fate.LATE, 30),  # due at 25, begun at 20
        (Fate.DROPPED, 30),  # due at 19
        (Fate.ANSWERED, 60),
    ]
    assert outcome.busy_s == pytest.approx(40 * MS)
    assert outcome.end_s == pytest.approx(60 * MS)
    assert outcome.share == 3 / 5
    assert outcome.goodput == pytest.approx(3 / (60 * MS))
    assert outcome.latencies_s == pytest.approx([10 * MS, 16 * MS, 10 * MS])
    assert queue.took_us == [10e3] * 4


def test_the_way_to_the_lane_counts_once_a_run() -> None:
    outcome = simulate(OneByOne(Candidate(0, {}, 10e3)), Lane(way_us=500), [request(0), request(0)])
    assert ends(outcome) == [(Fate.ANSWERED, 10.5), (Fate.ANSWERED, 21)]


def test_a_client_that_waits_for_its_answer_sends_the_next_one_then() -> None:
    def following(ended: Request, now_s: float) -> Request | None:
        return request(now_s / MS + 5) if now_s < 40 * MS else None

    outcome = simulate(OneByOne(Candidate(0, {}, 10e3)), Lane(way_us=0), [request(0)], following)
    assert ends(outcome) == [(Fate.ANSWERED, 10), (Fate.ANSWERED, 25), (Fate.ANSWERED, 40)]


def test_a_queue_that_forgets_a_request_is_found_out() -> None:
    class Forgetful(OneByOne):
        def arrive(self, request: Request, now_s: float) -> bool:
            return True

    with pytest.raises(AssertionError, match="1 requests have no end"):
        simulate(Forgetful(Candidate(0, {}, 1e3)), Lane(), [request(0)])


def test_a_queue_that_gives_a_request_twice_is_found_out() -> None:
    class Repeating(OneByOne):
        def start(self, now_s: float) -> tuple[Run | None, Sequence[Request]]:
            run, dropped = super().start(now_s)
            return (Run([*run.requests, *run.requests], run.candidate) if run else None), dropped

    with pytest.raises(AssertionError):
        simulate(Repeating(Candidate(0, {}, 1e3)), Lane(), [request(0)])


def test_noise_is_lognormal_with_rare_stalls_and_follows_the_seed() -> None:
    candidate = Candidate(0, {}, 1000.0)

    def times_us(noise: Noise, seed: int) -> list[float]:
        lane = Lane(noise, seed, way_us=0)
        return [lane.took_us(candidate) for _ in range(20_000)]

    assert times_us(NO_NOISE, 0)[:3] == [1000.0] * 3
    calm = times_us(Noise(0.1, 0.0, 2.0), 1)
    assert calm == times_us(Noise(0.1, 0.0, 2.0), 1)
    assert calm != times_us(Noise(0.1, 0.0, 2.0), 2)
    assert sum(900 < took_us < 1105 for took_us in calm) / 20_000 == pytest.approx(0.68, abs=0.03)
    stalled = [took_us for took_us in times_us(Noise(0.0, 0.05, 5.0), 1) if took_us > 1001]
    assert len(stalled) / 20_000 == pytest.approx(0.05, rel=0.2)
    assert sum(stalled) / len(stalled) == pytest.approx(5000, rel=0.2)


# The live code under this clock


def test_live_code_starts_at_once_and_gathers_while_the_lane_is_busy() -> None:
    candidates = compiled({(1, 1): 10, (4, 1): 12})
    outcome = simulate(LiveQueue({METHOD: candidates}), Lane(way_us=0), [request(at_ms) for at_ms in (0, 1, 2, 3)])
    assert ends(outcome) == [(Fate.ANSWERED, 10)] + [(Fate.ANSWERED, 22)] * 3


def test_live_code_wakes_for_what_waits_for_company() -> None:
    candidates = compiled({(1, 1): 10, (4, 1): 11})
    queue = LiveQueue({METHOD: candidates}, Policy(gather_s=5 * MS))
    outcome = simulate(queue, Lane(way_us=0), [request(0), request(2)])
    assert [at_ms for _, at_ms in ends(outcome)] == pytest.approx([16, 16], abs=0.01)


def test_live_code_refuses_what_would_be_late() -> None:
    queue = LiveQueue({METHOD: compiled({(1, 1): 10})})
    # The lane is new: that the first run may take three times as long is all that is known of it.
    outcome = simulate(queue, Lane(way_us=0), [request(0), request(1, within_ms=15), request(1, within_ms=900)])
    assert [fate for fate, _ in ends(outcome)] == [Fate.ANSWERED, Fate.REFUSED, Fate.ANSWERED]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seeds_give_the_same_ends_to_the_last_bit(seed: int) -> None:
    def played() -> list[tuple[Fate | None, float]]:
        arrivals = generate("bursty", 400, seed).within(4).faster(60)
        candidates = compiled({(rows, seq): rows * seq for rows in (1, 4) for seq in (1, 2, 4)})
        lane = Lane(Noise(0.1, 0.01, 4.0), seed)
        outcome = simulate(LiveQueue({METHOD: candidates}), lane, requests_of(arrivals, METHOD, "seq", 0.05))
        return [(one.fate, one.ended_s) for one in outcome.requests]

    first = played()
    assert first == played()
    assert len({fate for fate, _ in first}) >= 2  # it is no schedule on which nothing happens


def queues(windowed: Window | None, candidates: list[Candidate], queue_max: int) -> Queue:
    if windowed:
        return FixedWindow(windowed, candidates, "batch")
    return LiveQueue({METHOD: candidates}, rows_max=queue_max)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 4), st.sampled_from([2.0, 20.0, 60.0, 1000.0])),
        min_size=1,
        max_size=60,
    ),
    st.one_of(
        st.none(),
        st.builds(
            Window,
            st.sampled_from([0.0, 3 * MS, 30 * MS]),
            st.integers(1, 4),
            st.sampled_from([5 * MS, 50 * MS, inf]),
            st.sampled_from([1, 5, None]),
        ),
    ),
    st.integers(1, 40),
    st.integers(0, 1000),
)
def test_every_request_ends_once_and_runs_only_where_it_fits(
    drawn: list[tuple[int, int, float]], windowed: Window | None, queue_max: int, seed: int
) -> None:
    candidates = compiled({(rows, seq): 1 + rows * seq for rows in (1, 2, 4) for seq in (1, 2, 4)})
    arriving = [request(at_ms, seq, within_ms) for at_ms, seq, within_ms in drawn]
    outcome = simulate(queues(windowed, candidates, queue_max), Lane(Noise(0.2, 0.05, 5.0), seed), arriving)
    assert sum(map(outcome.count, Fate)) == len(arriving)
    ran = [one for run in outcome.runs for one in run.requests]
    assert len(ran) == len(set(map(id, ran))) == outcome.count(Fate.ANSWERED) + outcome.count(Fate.LATE)
    for run in outcome.runs:
        assert len(run.requests) <= run.candidate.bucket["batch"]
        assert max(one.need["seq"] for one in run.requests) <= run.candidate.bucket["seq"]
    for one in arriving:
        assert one.ended_s >= one.arrived_s
        assert (one.fate is Fate.ANSWERED) <= (one.ended_s <= one.deadline_s)
