from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from starlette.testclient import TestClient

from infra.stack.receiver import PROTOBUF, SPANS_A_TRACE_MAX, TRACES_MAX, Received, application
from warmpool.received_spans import received_spans


def pair(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def export(*spans: Span, service: str = "front") -> ExportTraceServiceRequest:
    resource = Resource(attributes=[pair("service.name", service), pair("host.name", "elsewhere")])
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=spans)])]
    )


def span(trace: int, number: int, **fields: Any) -> Span:
    return Span(trace_id=trace.to_bytes(16), span_id=number.to_bytes(8), name="run", **fields)


def test_a_span_is_what_an_instance_would_make_of_it() -> None:
    request = export(
        span(1, 2, start_time_unix_nano=5, end_time_unix_nano=9, attributes=[pair("warmpool.model", "toy")]),
        span(1, 3, start_time_unix_nano=7, end_time_unix_nano=6, parent_span_id=(2).to_bytes(8)),
    )
    received = Received()
    received.add(request)
    (trace,) = received.read(10)
    ((trace_id, spans),) = received_spans(request.SerializeToString()).items()
    assert trace["trace_id"] == trace_id
    assert trace["spans"] == [
        {name: getattr(one, name) for name in ("name", "span_id", "parent_id", "start_ns", "end_ns", "attributes")}
        for one in spans
    ]


def test_the_spans_of_several_services_are_one_trace_and_the_newest_comes_first() -> None:
    received = Received()
    received.add(export(span(1, 1), service="front"))
    received.add(export(span(2, 1)))
    received.add(export(span(1, 2), service="function"))
    traces = received.read(10)
    assert [int(one["trace_id"], 16) for one in traces] == [1, 2]
    assert [one["attributes"]["service.name"] for one in traces[0]["spans"]] == ["front", "function"]
    assert len(received.read(1)) == 1


def test_cold_traces_can_be_had_alone() -> None:
    cold = KeyValue(key="warmpool.cold", value=AnyValue(bool_value=True))
    received = Received()
    received.add(export(span(1, 1, attributes=[cold]), span(2, 1)))
    assert [int(one["trace_id"], 16) for one in received.read(10, cold_only=True)] == [1]


def test_what_is_kept_is_bounded() -> None:
    received = Received()
    received.add(export(*(span(1, number + 1) for number in range(SPANS_A_TRACE_MAX + 5))))
    assert len(received.read(1)[0]["spans"]) == SPANS_A_TRACE_MAX
    received.add(export(*(span(number + 2, 1) for number in range(TRACES_MAX))))
    kept = received.read(2 * TRACES_MAX)
    assert len(kept) == TRACES_MAX
    assert all(int(one["trace_id"], 16) > 1 for one in kept)


def test_spans_without_proper_ids_are_left_out() -> None:
    received = Received()
    received.add(export(Span(trace_id=b"short", span_id=b"12345678"), Span(trace_id=bytes(16), span_id=b"")))
    assert received.read(10) == []


def test_exports_are_taken_and_what_is_none_is_refused_with_the_reason() -> None:
    client = TestClient(application())
    body = export(span(7, 1)).SerializeToString()
    assert client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF}).status_code == 200
    assert [one["trace_id"] for one in client.get("/v1/traces?count=5").json()] == [f"{7:032x}"]
    for headers, content, status, words in (
        ({"content-type": "application/json"}, b"{}", 415, PROTOBUF),
        ({"content-type": PROTOBUF, "content-encoding": "gzip"}, body, 415, "not compressed"),
        ({"content-type": PROTOBUF}, b"\xff\xff", 400, "ExportTraceServiceRequest"),
    ):
        answer = client.post("/v1/traces", content=content, headers=headers)
        assert answer.status_code == status
        assert words in answer.json()["error"]
    assert client.get("/v1/traces?count=0").status_code == 400
    assert client.get("/v1/traces?count=x").status_code == 400
