"""What a cold start's trace says: how much of the wall time its leaf spans explain, and where that time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Span = dict[str, Any]  # as GET /v1/traces has it
Stage = tuple[str, float, float]  # name, begin and duration in milliseconds


def cold_start(traces: list[dict[str, Any]]) -> list[Span]:
    """The spans of the instance's own start. Raises ValueError where there is no such trace."""
    for trace in traces:
        spans: list[Span] = trace["spans"]
        if root_of(spans)["name"] == "cold start":
            return spans
    raise ValueError(f"none of the {len(traces)} traces is the instance's cold start")


def root_of(spans: Sequence[Span]) -> Span:
    """The span without a parent."""
    return next(span for span in spans if not span["parent_id"])


def leaves(spans: Sequence[Span]) -> list[Span]:
    """Spans that no other span has as its parent, by time."""
    parents = {span["parent_id"] for span in spans}
    return sorted((span for span in spans if span["span_id"] not in parents), key=lambda span: span["start_ns"])


def coverage(spans: Sequence[Span]) -> float:
    """The share of the root's time during which at least one leaf was running."""
    root = root_of(spans)
    covered_ns, reached_ns = 0, root["start_ns"]
    for leaf in leaves(spans):
        end_ns = min(leaf["end_ns"], root["end_ns"])
        covered_ns += max(0, end_ns - max(leaf["start_ns"], reached_ns))
        reached_ns = max(reached_ns, end_ns)
    return covered_ns / max(1, root["end_ns"] - root["start_ns"])


def duration_s(spans: Sequence[Span]) -> float:
    """How long the root took, in seconds."""
    root = root_of(spans)
    return (root["end_ns"] - root["start_ns"]) / 1e9


def stages(spans: Sequence[Span]) -> list[Stage]:
    """The leaves as "group / name", with begin and duration in milliseconds."""
    names = {span["span_id"]: span["name"] for span in spans}
    start_ns = root_of(spans)["start_ns"]
    return [
        (
            f"{names[leaf['parent_id']]} / {leaf['name']}" if leaf["parent_id"] else leaf["name"],
            (leaf["start_ns"] - start_ns) / 1e6,
            (leaf["end_ns"] - leaf["start_ns"]) / 1e6,
        )
        for leaf in leaves(spans)
    ]


def joined(rounds: Sequence[Sequence[Stage]]) -> list[tuple[str, float, list[float]]]:
    """The stages that every round has: name, median of the begins, durations; in the order they begin."""
    tables = [{name: (begin_ms, duration_ms) for name, begin_ms, duration_ms in one} for one in rounds]
    result: list[tuple[str, float, list[float]]] = []
    for name, *_ in rounds[0]:
        if all(name in table for table in tables):
            begins_ms = [table[name][0] for table in tables]
            result.append((name, statistics.median(begins_ms), [table[name][1] for table in tables]))
    return sorted(result, key=lambda stage: stage[1])


def request_parts(traces: Sequence[dict[str, Any]], since_ns: int) -> dict[str, float]:
    """Medians of the leaf spans of all requests that began at `since_ns` or later, in milliseconds, by name."""
    durations_ms: dict[str, list[float]] = {}
    for trace in traces:
        if root_of(trace["spans"])["start_ns"] >= since_ns:
            for name, _, duration_ms in stages(trace["spans"]):
                durations_ms.setdefault(name, []).append(duration_ms)
    return {name: statistics.median(values) for name, values in durations_ms.items()}
