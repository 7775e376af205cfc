"""`warmpool traces`: the waterfall of hand-made traces, and what a running instance's look like."""

import io
import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.warmpool.command import warmpool
from warmpool.traces_command import ordered, show
from warmpool.tracing import Span, Trace

MS = 1_000_000
EPOCH_NS = 1_700_000_000 * 1000 * MS


def span(name, parent, start_ms, end_ms, *, identity=None, **attributes):
    return Span(
        name=name,
        span_id=identity or name,
        parent_id=parent,
        start_ns=EPOCH_NS + int(start_ms * MS),
        end_ns=EPOCH_NS + int(end_ms * MS),
        attributes=attributes,
    )


REQUEST = [
    span("front", "", 0, 60),
    span("validate", "front", 0, 6),
    span("queue", "front", 6, 12),
    span("lane", "front", 12, 54),
    span("handover", "lane", 12, 18),
    span("run", "lane", 18, 48),
    span("return", "lane", 48, 54),
    span("respond", "front", 54, 60),
]


def drawn(*spans, width=130):
    console = Console(file=io.StringIO(), width=width, highlight=False, record=True)
    show(console, Trace(trace_id="5" * 32, spans=list(spans)))
    return console.export_text()


def bars(text):
    """(name as indented, begin, end) of every line after the first, in columns of the bar."""
    found = []
    for line in text.splitlines()[1:]:
        if line.strip():
            bar = line.rpartition(" ms ")[2]
            assert re.fullmatch(" *█+ *", bar), line
            found.append((line[:46].rstrip(), bar.index("█"), bar.rindex("█") + 1))
    return found


def outline(spans):
    return [(depth, each.name) for depth, each in ordered(spans)]


# The order


def test_every_span_is_below_its_parent_and_beside_its_siblings_in_order_of_time():
    expected = [
        (0, "front"),
        (1, "validate"),
        (1, "queue"),
        (1, "lane"),
        (2, "handover"),
        (2, "run"),
        (2, "return"),
        (1, "respond"),
    ]
    for seed in range(20):
        shuffled = random.Random(seed).sample(REQUEST, len(REQUEST))
        assert outline(shuffled) == expected


def test_spans_whose_parent_is_not_there_are_roots_with_their_own_children():
    remote = [
        span("front", "a function elsewhere", 5, 9),
        span("run", "front", 6, 8),
        span("function", "", 0, 10),
        span("pool.infer", "function", 1, 9),
    ]
    assert outline(remote) == [(0, "function"), (1, "pool.infer"), (0, "front"), (1, "run")]


def test_of_spans_that_begin_together_the_longest_comes_first():
    together = [span("short", "", 0, 1), span("none", "", 0, 0), span("long", "", 0, 5)]
    assert outline(together) == [(0, "long"), (0, "short"), (0, "none")]


def test_spans_that_were_sent_twice_do_not_multiply():
    chain = [span(str(depth), str(depth - 1) if depth else "", 0, 1) for depth in range(300)]
    found = outline(chain + chain)
    assert len(found) < 3 * len(chain)
    assert {name for _, name in found} == {each.name for each in chain}


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(-1, 8), st.integers(0, 9)), max_size=30))
def test_whatever_is_said_of_parents_it_ends_and_shows_nothing_that_is_not_there(drawn_spans):
    spans = [
        span(str(identity), str(parent), start, start + 1, identity=str(identity))
        for identity, parent, start in drawn_spans
    ]
    found = [each for _, each in ordered(spans)]
    assert len(found) <= len(spans)
    assert all(each in spans for each in found)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_in_a_tree_every_span_is_there_once_and_one_deeper_than_its_parent(made):
    spans = [
        span(str(index), str(parent % index) if index and parent < 20 else "", start, start + length)
        for index, (parent, start, length) in enumerate(made)
    ]
    depths = {each.span_id: depth for depth, each in ordered(spans)}
    assert sorted(each.span_id for _, each in ordered(spans)) == sorted(each.span_id for each in spans)
    assert all(depths[each.span_id] == depths.get(each.parent_id, -1) + 1 for each in spans)


# The drawing


def test_bars_lie_on_the_traces_own_time_axis_under_indented_names():
    text = drawn(*REQUEST)
    assert text.splitlines()[0] == f"trace {'5' * 32}  60.0 ms"
    assert bars(text) == [
        ("front", 0, 60),
        ("  validate", 0, 6),
        ("  queue", 6, 12),
        ("  lane", 12, 54),
        ("    handover", 12, 18),
        ("    run", 18, 48),
        ("    return", 48, 54),
        ("  respond", 54, 60),
    ]


def test_a_line_says_when_a_span_began_and_how_long_it_took():
    (line,) = (line for line in drawn(*REQUEST).splitlines() if line.startswith("    run "))
    assert re.search(r" 18\.0 \+ +30\.00 ms ", line)


def test_a_cold_trace_is_called_cold():
    assert drawn(span("cold start", "", 0, 5, **{"warmpool.cold": True})).splitlines()[0].endswith("5.0 ms  cold")
    assert "cold" not in drawn(span("front", "", 0, 5, **{"warmpool.cold": False}))


def test_what_took_no_time_has_a_bar_of_one_column_where_it_was():
    text = drawn(span("front", "", 0, 60), span("early", "front", 0, 0), span("late", "front", 60, 60))
    assert bars(text) == [("front", 0, 60), ("  early", 0, 1), ("  late", 59, 60)]


def test_a_trace_that_took_no_time_is_drawn_all_the_same():
    assert bars(drawn(span("front", "", 3, 3), span("run", "front", 3, 3))) == [("front", 0, 1), ("  run", 0, 1)]


def test_a_span_that_ends_before_it_begins_is_drawn_all_the_same():
    text = drawn(span("front", "", 0, 60), span("skewed", "front", 80, 20))
    assert bars(text) == [("front", 0, 60), ("  skewed", 59, 60)]


def test_names_of_others_are_shown_as_they_are_and_move_no_cursor():
    text = drawn(span("[bold]odd[/] \\", "", 0, 1), span("\x1b[2J\nnext\t", "", 0, 1), span("deep " * 20, "", 0, 1))
    names = sorted(name for name, _, _ in bars(text))
    assert names == ["?[2J?next?", "[bold]odd[/] \\", ("deep " * 20)[:46].rstrip()]
    assert len({line.index(" ms ") for line in text.splitlines()[1:] if line.strip()}) == 1


@pytest.mark.parametrize(("width", "columns"), [(40, 20), (100, 30), (130, 60), (1000, 90)])
def test_bars_use_the_width_there_is_within_reason(width, columns):
    console = Console(file=io.StringIO(), width=width, highlight=False, record=True)
    show(console, Trace(trace_id="5" * 32, spans=[span("front", "", 0, 1)]))
    assert console.export_text().count("█") == min(columns, max(0, width - 70))


# Of a running instance


@pytest.fixture(scope="module")
def asked(instance):
    """The instance after a few requests."""
    for rows in (1, 3, 20):
        instance.infer("predict", x=np.ones((rows, 4)))
    return f"http://127.0.0.1:{instance.port}"


def printed(url, *flags):
    result = warmpool("traces", "--url", url, *flags)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_json_is_a_list_of_traces_with_their_spans(asked):
    traces = json.loads(printed(asked, "--json", "--count", "1000"))
    names = set()
    for trace in traces:
        assert re.fullmatch("[0-9a-f]{32}", trace["trace_id"])
        for each in trace["spans"]:
            assert each.keys() == {"name", "span_id", "parent_id", "start_ns", "end_ns", "attributes"}
            assert re.fullmatch("[0-9a-f]{16}", each["span_id"])
            assert re.fullmatch("([0-9a-f]{16})?", each["parent_id"])
            assert type(each["start_ns"]) is type(each["end_ns"]) is int
            assert each["start_ns"] <= each["end_ns"]
            assert type(each["attributes"]) is dict
            names.add(each["name"])
    assert {"cold start", "front", "validate", "queue", "batch", "lane", "run", "respond"} <= names


def test_cold_starts_come_first_and_are_drawn_with_their_stages(asked):
    text = printed(asked, "--count", "1")
    first, second, *_ = text.splitlines()
    assert first.endswith("  cold")
    assert second.startswith("cold start ")
    assert len([line for line in text.splitlines() if line.startswith("trace ")]) == 1
    for stage in ("  zygote ", "    verify weights ", "    first run "):
        assert stage in text


def test_cold_ones_alone_are_all_cold(asked):
    everything = json.loads(printed(asked, "--json", "--count", "1000"))
    cold = json.loads(printed(asked, "--json", "--count", "1000", "--cold"))
    assert 0 < len(cold) < len(everything)
    assert all(any(each["attributes"].get("warmpool.cold") for each in trace["spans"]) for trace in cold)
    assert all(line.endswith("  cold") for line in printed(asked, "--cold").splitlines() if line.startswith("trace "))


def test_after_the_cold_ones_the_slowest_come_first(asked):
    traces = json.loads(printed(asked, "--json", "--count", "1000"))
    durations = [
        max(each["end_ns"] for each in trace["spans"]) - min(each["start_ns"] for each in trace["spans"])
        for trace in traces
        if not any(each["attributes"].get("warmpool.cold") for each in trace["spans"])
    ]
    assert len(durations) >= 3
    assert durations == sorted(durations, reverse=True)


@pytest.mark.parametrize("count", ["0", "-1", "1001", "many", "1e3", "²", "9" * 5000])
def test_a_count_that_is_not_allowed_is_told(count):
    result = warmpool("traces", f"--count={count}")
    assert result.returncode == 2
    assert "allowed: 1 to 1000" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_reader_that_leaves_early_is_no_accident(asked, flags):
    command = [sys.executable, "-m", "warmpool.cli", "traces", "--count", "1000", "--url", asked, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (1, b"")
