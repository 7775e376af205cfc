"""The ring is bounded and ordered, and speaks OTLP with the real SDK in both directions."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.warmpool.otlp_receiver import OtlpReceiver
from warmpool import received_spans as receiving
from warmpool.errors import TooLarge
from warmpool.logged_spans import logged_traces
from warmpool.received_spans import ATTRIBUTES_MAX, EXPORT_SPANS_MAX, received_spans
from warmpool.tracing import (
    COLD_STARTS_KEPT_MAX,
    EXPORT_S_MAX,
    SPANS_A_TRACE_MAX,
    SPANS_A_TRACE_MEAN_MAX,
    Exporter,
    Span,
    Trace,
    Traces,
    new_span_id,
    new_trace_id,
    trace_context,
)

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"

trace_ids = st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}")
span_ids = st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}")


def span(start_ns=0, end_ns=1, *, cold=False, name="front", parent_id="", **attributes):
    return Span(
        name=name,
        span_id=new_span_id(),
        parent_id=parent_id,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={"warmpool.cold": True, **attributes} if cold else attributes,
    )


def own(spans):
    return Trace(trace_id="", spans=spans)


def cold_start(name):
    return Trace(trace_id=name, spans=[span(0, 10, cold=True)])


def read(traces, count_max=1000, **only):
    return [trace.trace_id for trace in traces.read(count_max, **only)]


@given(trace_ids, span_ids, st.integers(0, 255))
def test_a_callers_context_is_taken_over(trace_id, span_id, flags):
    assert trace_context(f"00-{trace_id}-{span_id}-{flags:02x}") == (trace_id, span_id, flags % 2 == 1)


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "00",
        f"00-{TRACE_ID}-{PARENT_ID}",
        f"00-{TRACE_ID}-{PARENT_ID}-",
        f"00-{TRACE_ID}-{PARENT_ID}-0",
        f"00-{TRACE_ID}-{PARENT_ID}-01-more",
        f"00-{TRACE_ID}-{PARENT_ID}-01\n",
        f" 00-{TRACE_ID}-{PARENT_ID}-01",
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{TRACE_ID.upper()}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{PARENT_ID}-0G",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[:-1]}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{PARENT_ID}0-01",
        f"00_{TRACE_ID}_{PARENT_ID}_01",
        f"00-{TRACE_ID[:-1]}\u0661-{PARENT_ID}-01",
    ],
)
def test_a_malformed_context_begins_a_new_trace(traceparent):
    trace_id, parent_id, sampled = trace_context(traceparent)
    assert re.fullmatch(r"[0-9a-f]{32}", trace_id)
    assert (parent_id, sampled) == ("", True)
    assert trace_id not in {TRACE_ID, "0" * 32, trace_context(traceparent)[0]}


@given(st.text(max_size=80))
def test_whatever_a_caller_sends_a_trace_has_a_valid_id(traceparent):
    trace_id, parent_id, _ = trace_context(traceparent)
    assert re.fullmatch(r"(?!0{32})[0-9a-f]{32}", trace_id)
    assert re.fullmatch(r"([0-9a-f]{16})?", parent_id)


def test_the_ring_keeps_the_newest():
    traces = Traces(3)
    for number in range(10):
        traces.record(f"t{number}", own([span()]))
    assert sorted(read(traces)) == ["t7", "t8", "t9"]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3)), max_size=40), st.integers(1, 5))
def test_the_ring_never_holds_more_than_it_may(recorded, kept_max):
    traces = Traces(kept_max)
    for number, spans in recorded:
        traces.record(f"t{number}", own([span() for _ in range(spans)]))
        assert len(traces.read(1000)) <= kept_max
        assert f"t{number}" in read(traces)


def test_spans_of_one_trace_are_gathered_up_to_a_limit():
    traces = Traces(3)
    traces.record("t", own([span(name="front")]))
    traces.receive("t", [span(name="function")])
    assert [one.name for one in traces.read(1)[0].spans] == ["front", "function"]
    for _ in range(3):
        traces.receive("t", [span() for _ in range(SPANS_A_TRACE_MAX - 1)])
    assert len(traces.read(1)[0].spans) == SPANS_A_TRACE_MAX


def test_a_trace_without_spans_is_none():
    traces = Traces(3)
    traces.receive("t", [])
    assert traces.read(10) == []


def test_cold_starts_come_first_then_cold_requests_then_the_slowest():
    traces = Traces(10)
    traces.record("fast", own([span(0, 10)]))
    traces.record("slow", own([span(0, 30)]))
    traces.record("cold", own([span(0, 5), span(1, 2, cold=True)]))
    traces.record("colder", own([span(0, 6, cold=True)]))
    traces.record_cold_start(cold_start("start"))
    traces.record_cold_start(cold_start("lane start"))
    assert read(traces) == ["start", "lane start", "colder", "cold", "slow", "fast"]
    assert read(traces, cold_only=True) == ["start", "lane start", "colder", "cold"]
    assert read(traces, 3) == ["start", "lane start", "colder"]


def test_requests_do_not_push_out_cold_starts_and_those_are_bounded_too():
    traces = Traces(2)
    for number in range(COLD_STARTS_KEPT_MAX + 5):
        traces.record_cold_start(cold_start(f"start{number}"))
    for number in range(100):
        traces.record(f"t{number}", own([span()]))
    kept = read(traces)
    assert kept[:COLD_STARTS_KEPT_MAX] == [f"start{number}" for number in range(5, COLD_STARTS_KEPT_MAX + 5)]
    assert sorted(kept[COLD_STARTS_KEPT_MAX:]) == ["t98", "t99"]


def test_a_trace_lasts_from_its_first_span_to_its_last():
    assert Trace(trace_id="t", spans=[span(5, 7), span(3, 6), span(6, 11)]).duration_ns == 8


@pytest.fixture
def receiver():
    with OtlpReceiver() as running:
        yield running


def test_spans_of_the_real_sdk_are_received(receiver):
    provider = TracerProvider(resource=Resource({"service.name": "embed"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")))
    tracer = provider.get_tracer("t")
    plain: dict[str, Any] = {"text": "ä", "flag": True, "count": -3, "share": 0.5}
    with tracer.start_as_current_span("outer", attributes={**plain, "many": [1, 2]}, start_time=1000) as outer:
        inner = tracer.start_span("inner", start_time=2000)
        inner.end(3000)
        outer_context, inner_context = outer.get_span_context(), inner.get_span_context()
    provider.shutdown()

    received = [received_spans(body) for body in receiver.bodies]
    trace_id = f"{outer_context.trace_id:032x}"
    assert [list(spans) for spans in received] == [[trace_id]] * 2
    (inner_span,), (outer_span,) = (spans[trace_id] for spans in received)
    assert inner_span == Span(
        name="inner",
        span_id=f"{inner_context.span_id:016x}",
        parent_id=f"{outer_context.span_id:016x}",
        start_ns=2000,
        end_ns=3000,
        attributes={"service.name": "embed"},
    )
    assert outer_span.parent_id == ""
    assert outer_span.attributes == {**plain, "service.name": "embed"}


def test_spans_are_exported_to_a_real_receiver(receiver):
    traces = Traces(10)
    traces.record_cold_start(Trace(trace_id=new_trace_id(), spans=[span(1, 2, name="before", cold=True)]))
    recorded = {
        new_trace_id(): [span(1000, 5000, share=0.25, rows=3, lane="primary", cold=True)],
        new_trace_id(): [span(7, 9), span(8, 9, name="run", parent_id=new_span_id())],
    }
    for trace_id, spans in recorded.items():
        traces.record(trace_id, own(spans))
        traces.start_export(receiver.url + "/", "warmpool")  # the first is there by then
    late = Trace(trace_id=new_trace_id(), spans=[span(3, 4, name="lane start", cold=True)])
    traces.record_cold_start(late)
    traces.receive(new_trace_id(), [span(name="exported by its own process")])
    traces.end_export(receiver.url, "warmpool", 60.0)

    sent = [
        (trace_id, one) for body in receiver.bodies for trace_id, ones in received_spans(body).items() for one in ones
    ]
    assert all(one.attributes.pop("service.name") == "warmpool" for _, one in sent)
    before = next(trace for trace in traces.read(10) if trace.spans[0].name == "before")
    wanted = recorded | {trace.trace_id: trace.spans for trace in (before, late)}
    assert sorted(sent, key=repr) == sorted(
        ((trace_id, one) for trace_id, spans in wanted.items() for one in spans), key=repr
    )


def test_where_no_collector_takes_them_spans_are_lines_that_are_read_back(capfd):
    traces = Traces(10)
    recorded = {
        new_trace_id(): [span(1_000_000, 5_000_000, share=0.25, rows=3, lane="prim\när", cold=True)],
        new_trace_id(): [span(7000, 9000), span(8000, 9000, name="run", parent_id=new_span_id())],
    }
    for trace_id, spans in recorded.items():
        traces.record(trace_id, own(spans))
    traces.end_export("-", "warmpool", 60.0)
    written = capfd.readouterr().out
    assert len(written.splitlines()) == 3
    found = {trace.trace_id: trace.spans for trace in logged_traces(written).read(10)}
    told = [one.attributes for spans in found.values() for one in spans]
    assert all((one.pop("service.name"), len(one.pop("service.instance.id"))) == ("warmpool", 36) for one in told)
    assert found == recorded


def test_what_its_caller_does_not_sample_is_exported_only_if_it_was_cold_and_is_kept(capfd):
    traces = Traces(10)
    names = {name: new_trace_id() for name in ("sampled", "not", "cold")}
    traces.start_export("-", "warmpool")
    traces.record(names["sampled"], own([span(1000, 2000)]))
    traces.record(names["not"], own([span(1000, 2000)]), sampled=False)
    traces.record(names["cold"], own([span(1000, 2000, cold=True)]), sampled=False)
    traces.end_export("-", "warmpool", 60.0)
    assert set(read(logged_traces(capfd.readouterr().out))) == {names["sampled"], names["cold"]}
    assert set(read(traces)) == set(names.values())


def test_a_collector_that_is_away_costs_a_span_nothing_and_the_end_little():
    with socket.socket() as bound:  # a port that nobody listens on, and nobody else gets
        bound.bind(("127.0.0.1", 0))
        exporter = Exporter(f"http://127.0.0.1:{bound.getsockname()[1]}", "warmpool")
        started_s = time.monotonic()
        for _ in range(200):
            exporter.send(new_trace_id(), span())
        sent_s = time.monotonic()
        exporter.close()
        closed_s = time.monotonic()
    assert sent_s - started_s < 30.0
    assert closed_s - sent_s < EXPORT_S_MAX + 30.0


def test_a_collector_that_hangs_does_not_hold_up_the_end(caplog):
    """The queue holds four batches, each of which has EXPORT_S_MAX of its own."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        exporter = Exporter(f"http://127.0.0.1:{hanging.getsockname()[1]}", "warmpool")
        for _ in range(2000):
            exporter.send(new_trace_id(), span())
        exporter.close(0.2)
    assert "spans are lost" in caplog.text


def export_request():
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "embed"
    one = resource_spans.scope_spans.add().spans.add(name="run", trace_id=bytes(16), span_id=bytes(8))
    one.attributes.add(key="rows").value.int_value = 3
    one.attributes.add(key="many").value.array_value.values.add().int_value = 4
    one.attributes.add(key="unset")
    return request.SerializeToString()


WHOLE = export_request()


def test_only_plain_attributes_are_kept():
    ((one,),) = received_spans(WHOLE).values()
    assert one.attributes == {"rows": 3, "service.name": "embed"}


def exported(resources=1, scopes=1, spans=1, **fields):
    request = ExportTraceServiceRequest()
    for _ in range(resources):
        resource = request.resource_spans.add()
        for _ in range(scopes):
            scope = resource.scope_spans.add()
            for _ in range(spans):
                scope.spans.add(**{"trace_id": bytes(16), "span_id": bytes(8)} | fields)
    return request.SerializeToString()


@pytest.mark.parametrize(("resources", "scopes", "spans"), [(1025, 0, 0), (32, 33, 0), (4, 8, 33), (1, 1, 1025)])
def test_more_parts_than_an_export_may_have_are_refused_at_every_level(resources, scopes, spans, monkeypatch):
    def looked_at(*_):
        raise AssertionError("a span was looked at")

    monkeypatch.setattr(receiving, "_received", looked_at)
    with pytest.raises(TooLarge, match=f"more than {EXPORT_SPANS_MAX} spans"):
        received_spans(exported(resources, scopes, spans))


def test_as_many_spans_as_an_export_may_have_are_received():
    (spans,) = received_spans(exported(4, 8, 32)).values()
    assert len(spans) == EXPORT_SPANS_MAX


@pytest.mark.parametrize(
    "ids",
    [
        {"trace_id": b""},
        {"trace_id": bytes(15)},
        {"trace_id": bytes(1 << 19)},
        {"span_id": b""},
        {"span_id": bytes(9)},
        {"parent_span_id": bytes(7)},
        {"parent_span_id": bytes(1 << 19)},
    ],
    ids=str,
)
def test_a_span_whose_ids_are_of_another_length_is_left_out(ids):
    assert received_spans(exported(**ids)) == {}
    assert len(received_spans(exported() + exported(**ids))) == 1


def test_a_span_that_ends_before_it_began_lasts_no_time():
    ((one,),) = received_spans(exported(start_time_unix_nano=9, end_time_unix_nano=4)).values()
    assert (one.start_ns, one.end_ns) == (9, 9)


def test_attributes_are_bounded_whatever_they_are():
    request = ExportTraceServiceRequest.FromString(exported())
    one = request.resource_spans[0].scope_spans[0].spans[0]
    for index in range(ATTRIBUTES_MAX):
        one.attributes.add(key=f"unset{index}")
    one.attributes.add(key="late").value.int_value = 1
    ((found,),) = received_spans(request.SerializeToString()).values()
    assert found.attributes == {"service.name": ""}


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from([1, 500, 2000])), max_size=40))
def test_the_ring_is_bounded_in_spans_and_drops_who_came_first(recorded):
    traces = Traces(200)
    spans_max = 200 * SPANS_A_TRACE_MEAN_MAX
    for number, count in recorded:
        traces.receive(f"t{number}", [span()] * count)
        held = {trace.trace_id: len(trace.spans) for trace in traces.read(1000)}
        assert sum(held.values()) <= spans_max
        assert f"t{number}" in held
    last = list(dict.fromkeys(number for number, _ in reversed(recorded)))
    assert read(traces) == [] or {f"t{number}" for number in last[: len(read(traces))]} == set(read(traces))


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_a_damaged_export_request_is_a_value_error_or_has_spans(index, replacement):
    body = WHOLE[:index] + replacement + WHOLE[index + 1 :]
    with contextlib.suppress(ValueError):
        for trace_id, spans in received_spans(body).items():
            traces = Traces(1)
            traces.receive(trace_id, spans)
            assert msgspec.json.encode(traces.read(1))


@pytest.mark.parametrize("body", [b"{}", b"\xff\xff\xff", b'{"resourceSpans": []}'])
def test_what_is_no_protobuf_is_refused(body):
    with pytest.raises(ValueError, match="not an OTLP ExportTraceServiceRequest"):
        received_spans(body)


def test_ids_are_those_of_w3c_and_do_not_repeat():
    assert len({new_trace_id() for _ in range(100)}) == len({new_span_id() for _ in range(100)}) == 100
    assert api.format_trace_id(int(new_trace_id(), 16))
    random.seed(1)
    first = new_trace_id()
    random.seed(1)
    assert new_trace_id() != first  # a model that seeds the generator must not make two traces one
