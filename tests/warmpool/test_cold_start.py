"""A start's trace reaches from exec to ready, in groups that hold every stage."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from warmpool.cold_start import ColdStart, process_start_ns
from warmpool.messages import Stage

stages = st.lists(
    st.builds(Stage, name=st.sampled_from("abc"), start_ns=st.integers(0, 50), end_ns=st.integers(50, 99))
)


def test_a_trace_has_a_root_a_span_a_group_and_a_span_a_stage():
    start = ColdStart("cold start", 100)
    start.add("front", [Stage("interpreter", 100, 150)])
    start.add("zygote", [Stage("import jaxlib", 120, 300)])
    start.add("front", [Stage("read catalog", 160, 180), Stage("verify weights", 180, 220)])
    trace = start.trace(400)

    root, front, interpreter, catalog, weights, zygote, imported = trace.spans
    assert (root.name, root.parent_id, root.start_ns, root.end_ns) == ("cold start", "", 100, 400)
    assert (front.name, front.parent_id, front.start_ns, front.end_ns) == ("front", root.span_id, 100, 220)
    assert (zygote.name, zygote.parent_id, zygote.start_ns, zygote.end_ns) == ("zygote", root.span_id, 120, 300)
    for leaf, parent, name in (
        (interpreter, front, "interpreter"),
        (catalog, front, "read catalog"),
        (weights, front, "verify weights"),
        (imported, zygote, "import jaxlib"),
    ):
        assert (leaf.name, leaf.parent_id) == (name, parent.span_id)
    assert (weights.start_ns, weights.end_ns) == (180, 220)
    assert trace.cold
    assert trace.duration_ns == 300
    assert len({span.span_id for span in trace.spans}) == len(trace.spans)


def test_two_starts_are_two_traces():
    start = ColdStart("cold start", 0)
    assert start.trace(1).trace_id != start.trace(1).trace_id


def test_a_start_without_stages_is_its_root():
    (root,) = ColdStart("lane start", 5).trace(9).spans
    assert (root.start_ns, root.end_ns) == (5, 9)


def test_a_group_that_has_no_stages_yet_has_no_span():
    """A lane that could not map weights says so with no stage."""
    start = ColdStart("cold start", 0)
    start.add("weights", [])
    assert len(start.trace(1).spans) == 1
    start.add("weights", [Stage("map", 0, 1)])
    assert len(start.trace(1).spans) == 3


@given(st.lists(st.tuples(st.sampled_from(["front", "zygote", "lane"]), stages)))
def test_every_stage_lies_within_its_group_and_none_is_lost(added):
    start = ColdStart("cold start", 0)
    for group, given_stages in added:
        start.add(group, given_stages)
    spans = start.trace(99).spans
    by_id = {span.span_id: span for span in spans}
    leaves = [span for span in spans if span.parent_id and by_id[span.parent_id].parent_id]
    assert sorted((by_id[leaf.parent_id].name, leaf.name, leaf.start_ns, leaf.end_ns) for leaf in leaves) == sorted(
        (group, stage.name, stage.start_ns, stage.end_ns) for group, ones in added for stage in ones
    )
    for leaf in leaves:
        group = by_id[leaf.parent_id]
        assert group.start_ns <= leaf.start_ns <= leaf.end_ns <= group.end_ns


def test_what_began_after_the_start_was_over_is_a_trace_of_its_own():
    start = ColdStart("cold start", 0)
    start.add("front", [Stage("import", 0, 40)])
    start.add("lane: tiny batch=1", [Stage("load", 20, 50)])
    start.end_ns = 50
    assert start.fill_trace("primary lane fill") is None
    start.add("lane: tiny batch=8", [Stage("load", 55, 70), Stage("first run", 70, 80)])
    start.add("lane: tiny batch=4", [Stage("load", 50, 60)])
    fill = start.fill_trace("primary lane fill")
    assert fill is not None
    assert [(span.name, span.start_ns, span.end_ns) for span in fill.spans] == [
        ("primary lane fill", 50, 80),
        ("lane: tiny batch=8", 55, 80),
        ("load", 55, 70),
        ("first run", 70, 80),
        ("lane: tiny batch=4", 50, 60),
        ("load", 50, 60),
    ]
    assert fill.cold


def test_a_process_knows_when_it_was_executed():
    before_ns = time.time_ns()
    code = "from warmpool.cold_start import process_start_ns; print(process_start_ns())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    assert before_ns - 2 * tick_ns <= int(shown) <= time.time_ns()
    assert process_start_ns() < before_ns
