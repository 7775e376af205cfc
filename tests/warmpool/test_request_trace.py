"""The leaves of a request's trace lie end to end: what took long can be seen, and nothing is left unexplained."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.served import doubling
from warmpool.batches import PartResult
from warmpool.dataplane import Answer
from warmpool.fallback import Step
from warmpool.request_trace import RequestTrace

LEAVES = ["validate", "queue", "batch", "handover", "run", "return", "respond"]


def part_result(times):
    formed, sent, run_start, run_end, received = times
    return PartResult(
        outputs=[],
        lane="primary",
        bucket="batch=8",
        padding=0.123456,
        batch_rows=3,
        padded_rows=5,
        elements=30,
        padded_elements=50,
        cold=False,
        step=Step.EXACT,
        arrived_ns=0,
        formed_ns=formed,
        sent_ns=sent,
        run_start_ns=run_start,
        run_end_ns=run_end,
        received_ns=received,
    )


def spans_of(start, validated, parts, end, **attributes):
    answer = Answer(method=doubling(), outputs={}, parts=parts, rows=3, validated_ns=validated)
    trace = RequestTrace(parent_id="p" * 16, start_ns=start, end_ns=end, answer=answer, attributes=attributes)
    assert len(trace) == len(trace.made())
    assert trace.made() is trace.made(), "read again, they have the same identifiers"
    assert (trace.start_ns, trace.end_ns) == (start, end)
    return trace.made()


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8).map(sorted))
def test_the_leaves_of_a_request_fill_its_time_without_gap_or_overlap(times):
    start, validated, *of_the_part, end = times
    spans = spans_of(start, validated, [part_result(of_the_part)], end)
    inner = {span.parent_id for span in spans}
    leaves = [span for span in spans if span.span_id not in inner]
    assert [span.name for span in leaves] == LEAVES
    assert (leaves[0].start_ns, leaves[-1].end_ns) == (start, end)
    assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(leaves))
    assert sum(span.end_ns - span.start_ns for span in leaves) == end - start


def test_the_root_has_the_callers_span_as_its_parent_and_the_lane_says_what_ran():
    spans = spans_of(0, 1, [part_result((2, 3, 4, 5, 6))], 7, status=200)
    root = spans[0]
    assert (root.name, root.parent_id, root.attributes) == ("front", "p" * 16, {"status": 200})
    (lane,) = [span for span in spans if span.name == "lane"]
    assert lane.parent_id == root.span_id
    assert (lane.start_ns, lane.end_ns) == (3, 6)
    assert lane.attributes == {
        "warmpool.lane": "primary",
        "warmpool.bucket": "batch=8",
        "warmpool.padding": 0.1235,
        "warmpool.batch_rows": 3,
        "warmpool.cold": False,
    }
    assert {span.name for span in spans if span.parent_id == lane.span_id} == {"handover", "run", "return"}


def test_a_split_request_has_the_spans_of_every_part_and_responds_after_the_last():
    spans = spans_of(0, 1, [part_result((2, 3, 4, 5, 6)), part_result((3, 7, 8, 9, 12))], 15)
    assert [span.name for span in spans].count("run") == 2
    (respond,) = [span for span in spans if span.name == "respond"]
    assert (respond.start_ns, respond.end_ns) == (12, 15)


def test_a_request_without_rows_is_validated_and_answered():
    assert [(span.name, span.start_ns, span.end_ns) for span in spans_of(0, 4, [], 9)[1:]] == [
        ("validate", 0, 4),
        ("respond", 4, 9),
    ]


def test_a_refused_request_is_its_root():
    (root,) = RequestTrace(parent_id="", start_ns=3, end_ns=5, answer=None, attributes={"status": 400}).made()
    assert (root.name, root.parent_id, root.start_ns, root.end_ns) == ("front", "", 3, 5)


def test_a_clock_that_was_set_back_makes_no_span_end_before_it_begins():
    spans = spans_of(10, 9, [part_result((8, 7, 6, 5, 4))], 3)
    assert all(span.start_ns <= span.end_ns for span in spans if span.name in LEAVES)
