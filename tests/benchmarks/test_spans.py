from __future__ import annotations

from typing import Any

import pytest

from benchmarks import spans


def span(name: str, identity: str, parent: str, start_ms: int, end_ms: int) -> dict[str, Any]:
    start_ns, end_ns = start_ms * 1_000_000, end_ms * 1_000_000
    return {"name": name, "span_id": identity, "parent_id": parent, "start_ns": start_ns, "end_ns": end_ns}


START = [
    span("cold start", "root", "", 100, 200),
    span("front", "f", "root", 100, 180),
    span("import", "fi", "f", 100, 150),
    span("verify", "fv", "f", 160, 180),
    span("lane", "l", "root", 140, 210),
    span("load", "ll", "l", 140, 155),
    span("first run", "lr", "l", 190, 210),
]


def test_coverage_counts_overlapping_leaves_once_and_nothing_outside_the_root() -> None:
    assert spans.coverage(START) == pytest.approx((55 + 20 + 10) / 100)  # 100-155, 160-180, 190-200


def test_stages_are_leaves_with_their_group_in_the_order_they_begin() -> None:
    assert spans.stages(START) == [
        ("front / import", 0, 50),
        ("lane / load", 40, 15),
        ("front / verify", 60, 20),
        ("lane / first run", 90, 20),
    ]


def test_only_stages_of_every_round_are_joined() -> None:
    other = [("lane / load", 60.0, 25.0), ("front / import", 2.0, 30.0)]
    assert spans.joined([spans.stages(START), other]) == [
        ("front / import", 1, [50, 30]),
        ("lane / load", 50, [15, 25]),
    ]


def test_the_instances_own_start_is_found_among_others() -> None:
    lane = {"spans": [span("cpu lane start", "r", "", 0, 1)]}
    assert spans.cold_start([lane, {"spans": START}]) is START
    with pytest.raises(ValueError, match="none of the 1 traces"):
        spans.cold_start([lane])


def test_parts_of_requests_are_medians_over_those_that_began_late_enough() -> None:
    def request(start_ms: int, run_ms: int) -> dict[str, Any]:
        end_ms = start_ms + run_ms
        return {"spans": [span("front", "f", "", start_ms, end_ms), span("run", "r", "f", start_ms, end_ms)]}

    traces = [request(5, 90), request(10, 3), request(20, 1), request(30, 2)]
    assert spans.request_parts(traces, 10_000_000) == {"front / run": 2.0}
