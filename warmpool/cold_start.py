"""The trace of a start: every stage that an instance or a lane went through before it could serve, and after."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from warmpool.messages import Stage
from warmpool.tracing import Span, Trace, new_span_id, new_trace_id


class ColdStart:
    """Collects stages by group (front, zygote, an executable, ...) and makes their trace.

    The groups may overlap, since a start does several things at once; a group's span reaches from its first stage to
    its last.
    """

    def __init__(self, name: str, start_ns: int) -> None:
        self.name = name
        self.start_ns = start_ns
        self.end_ns: int | None = None
        self._groups: dict[str, list[Stage]] = {}

    def add(self, group: str, stages: list[Stage]) -> None:
        """Add stages to a group, making it if it is new; one without stages has no place in time, and no span."""
        if stages:
            self._groups.setdefault(group, []).extend(stages)

    def trace(self, end_ns: int) -> Trace:
        """The trace of everything up to now."""
        return _trace(self.name, self.start_ns, end_ns, self._groups)

    def fill_trace(self, name: str) -> Trace | None:
        """The trace of what began after the end, if anything did."""
        assert self.end_ns is not None, self.name
        later = {
            group: stages
            for group, stages in self._groups.items()
            if min(stage.start_ns for stage in stages) >= self.end_ns
        }
        if not later:
            return None
        return _trace(name, self.end_ns, max(stage.end_ns for stages in later.values() for stage in stages), later)


def _trace(name: str, start_ns: int, end_ns: int, groups: Mapping[str, list[Stage]]) -> Trace:
    root = new_span_id()
    cold = {"warmpool.cold": True}
    spans = [Span(name=name, span_id=root, parent_id="", start_ns=start_ns, end_ns=end_ns, attributes=cold)]
    for group, stages in groups.items():
        parent = new_span_id()
        spans.append(
            Span(
                name=group,
                span_id=parent,
                parent_id=root,
                start_ns=min(stage.start_ns for stage in stages),
                end_ns=max(stage.end_ns for stage in stages),
            )
        )
        spans += [
            Span(
                name=stage.name,
                span_id=new_span_id(),
                parent_id=parent,
                start_ns=stage.start_ns,
                end_ns=stage.end_ns,
            )
            for stage in stages
        ]
    return Trace(trace_id=new_trace_id(), spans=spans)


def process_start_ns() -> int:
    """When this process was executed, in nanoseconds since the epoch; the kernel keeps it to 10 ms."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s_after_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return time.time_ns() - int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s_after_boot) * 1e9)
    except (OSError, ValueError, IndexError):
        return time.time_ns()
