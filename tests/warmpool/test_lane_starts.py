"""The trace of a lane's start has what was done for it since it was asked for, and nothing from before."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmpool.cold_start import ColdStart
from warmpool.lane_starts import LaneStarts
from warmpool.messages import Stage
from warmpool.tracing import Traces

STARTED_NS = 1000
FORKED_AHEAD = {
    "it was not": ([("client", 1010, 1020), ("fingerprint", 1020, 1030)], [("fork", 1000), ("client", 1010)]),
    "and waited": ([("client", 10, 20), ("fingerprint", 20, 30)], []),
    "and was making its client": (
        [("client", 990, 1020), ("fingerprint", 1020, 1030)],
        [("fork", 1000), ("client", 1000)],
    ),
    "and had made it": ([("client", 980, 990), ("fingerprint", 990, 1030)], [("fork", 1000), ("fingerprint", 1000)]),
}


@pytest.mark.parametrize(("said", "begun"), FORKED_AHEAD.values(), ids=FORKED_AHEAD)
def test_of_a_process_that_was_forked_ahead_what_it_did_before_is_no_part(said, begun):
    starts = LaneStarts(Traces(1), ColdStart("cold start", 0))
    lane = cast("Any", SimpleNamespace(name="cpu", started_ns=STARTED_NS))
    starts.began(lane, [Stage(*stage) for stage in said], 500)
    starts.over(lane)
    spans = [span for span in starts._starts["cpu"].trace(2000).spans if not span.name.startswith("cpu lane")]
    assert [(span.name, span.start_ns) for span in spans][:2] == begun
