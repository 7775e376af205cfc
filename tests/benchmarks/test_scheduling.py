from __future__ import annotations

import time

from benchmarks.scheduling import CASES, REQUESTS, WAITING, _Queue, request_us
from benchmarks.simulator.cost_table import STORED, read_costs


def test_as_many_wait_as_are_said_to_whenever_a_batch_is_taken() -> None:
    table = read_costs(STORED / "embed.json")
    for case in CASES:
        queue = _Queue(table, case, 1)
        queue.offer(WAITING)
        waiting = []
        for _ in range(60):
            waiting.append(len(queue._scheduler))
            queue.serve(1)
        assert WAITING * 0.8 <= sum(waiting) / len(waiting) <= WAITING * 1.2, case
        assert queue.spent_ns > 0


def test_no_more_is_counted_than_the_time_that_passed() -> None:
    table = read_costs(STORED / "embed.json")
    begin_s = time.perf_counter()
    found_us = request_us(table, CASES[0], 1)
    assert 0 < found_us * REQUESTS * 1e-6 < time.perf_counter() - begin_s
