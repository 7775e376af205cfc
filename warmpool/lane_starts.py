"""Traces of what lanes load: how they start, what they load after that, and what comes back later."""

from __future__ import annotations

import time

from warmpool.cold_start import ColdStart
from warmpool.lanes import LaneProxy
from warmpool.messages import Stage
from warmpool.tracing import Traces


class LaneStarts:
    """Of the lanes of one instance.

    Args:
        traces: Keep them.
        cold_start: The instance's own, which the primary lane's first one is a part of.
    """

    def __init__(self, traces: Traces, cold_start: ColdStart) -> None:
        self._traces = traces
        self._starts: dict[str, ColdStart] = {"primary": cold_start}

    def began(self, lane: LaneProxy, stages: list[Stage], forkable_ns: int) -> None:
        """A lane has a client; since `forkable_ns` it could be forked, and waited for nothing else.

        What a process that was forked ahead had done before the start is no part of it.
        """
        start = self._starts.setdefault(lane.name, ColdStart(f"{lane.name} lane start", lane.started_ns))
        own = [
            Stage(stage.name, max(stage.start_ns, start.start_ns), stage.end_ns)
            for stage in stages
            if stage.end_ns > start.start_ns
        ]
        if own:
            since_ns = min(max(lane.started_ns, forkable_ns), own[0].start_ns)
            start.add(f"{lane.name} lane", [Stage("fork", since_ns, own[0].start_ns), *own])

    def planned(self, lane: LaneProxy, stage: str, since_ns: int) -> None:
        """It got its plan, which was made since then in a stage of this name."""
        if start := self._starts.get(lane.name):
            start.add(f"{lane.name} lane", [Stage(stage, since_ns, time.time_ns())])

    def loaded(self, lane: LaneProxy, title: str, stages: list[Stage]) -> None:
        """It loaded something: at its start, or because what was cold, or had to go, is warm after all."""
        if lane.name not in self._starts:
            self._starts[lane.name] = ColdStart(f"{lane.name} lane reload", stages[0].start_ns)
        self._starts[lane.name].add(f"{lane.name} lane: {title}", stages)

    def under_way(self, lane: LaneProxy) -> bool:
        """Whether it has begun, and has not all that it needs at least."""
        start = self._starts.get(lane.name)
        return start is not None and start.end_ns is None

    def over(self, lane: LaneProxy) -> None:
        """It has tried what it needs at least."""
        start = self._starts[lane.name]
        start.end_ns = time.time_ns()
        self._traces.record_cold_start(start.trace(start.end_ns))

    def filled(self, lane: LaneProxy) -> bool:
        """Keep the trace of what it loaded after that, once it has tried everything; whether that is so, for once."""
        start = self._starts.get(lane.name)
        if start is None or start.end_ns is None or not lane.held.loaded:
            return False
        del self._starts[lane.name]
        if fill := start.fill_trace(f"{lane.name} lane fill"):
            self._traces.record_cold_start(fill)
        return True

    def died(self, lane: LaneProxy) -> None:
        """Its process is gone, and with it what it loaded."""
        self._starts.pop(lane.name, None)
