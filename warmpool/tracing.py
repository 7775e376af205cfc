"""Traces of an instance: a bounded ring that is always there, and an OTLP exporter where one is configured.

A span is recorded as a plain value after the fact, with the times that the front, a lane or a function took, so that
recording costs a request next to nothing. Cold starts are kept apart, so that requests cannot push them out.

The OpenTelemetry SDK is imported here and nowhere else, and only to export.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from warmpool.errors import TooLarge

log = logging.getLogger(__name__)

COLD_STARTS_KEPT_MAX = 32
SPANS_A_TRACE_MAX = 2048
NAME_CHARACTERS_MAX = 128
ATTRIBUTES_MAX = 32
ATTRIBUTE_CHARACTERS_MAX = 512
SPANS_A_TRACE_MEAN_MAX = 16  # what the ring has room for: a request's own are 9, and its function has a few more
EXPORT_S_MAX = 2.0  # retries included; an instance that goes down waits for the last export
EXPORT_BYTES_MAX = 1 << 20
EXPORT_SPANS_MAX = 1024  # the SDK sends up to 512 at a time

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span; times in nanoseconds since the epoch, `parent_id` "" for a root."""

    name: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = {}


class Trace(msgspec.Struct, kw_only=True):
    """The spans of one trace, in the order they were recorded."""

    trace_id: str
    spans: list[Span] = []

    @property
    def duration_ns(self) -> int:
        return max(span.end_ns for span in self.spans) - min(span.start_ns for span in self.spans)

    @property
    def cold(self) -> bool:
        return any(span.attributes.get("warmpool.cold") for span in self.spans)


class Exporter:
    """Sends spans to a collector, in batches, from the SDK's thread; a collector that is away costs no request."""

    def __init__(self, endpoint: str, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create({"service.name": service})
        target = f"{endpoint.rstrip('/')}/v1/traces"
        self._sender = OTLPSpanExporter(endpoint=target, timeout=EXPORT_S_MAX)
        self._processor = BatchSpanProcessor(self._sender)

    def send(self, trace_id: str, span: Span) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags

        def context(span_id: str) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))

        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=context(span.span_id),
                parent=context(span.parent_id) if span.parent_id else None,
                resource=self._resource,
                attributes=span.attributes,
                start_time=span.start_ns,
                end_time=span.end_ns,
            )
        )

    def close(self, wait_s_max: float = EXPORT_S_MAX) -> None:
        """Send what is left, for so many seconds in all; what a slow collector has not taken by then is lost."""
        # The SDK gives every batch of the queue a time of its own, and its thread cannot be stopped: it is left behind.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(wait_s_max)
        if closing.is_alive():
            self._sender.shutdown()
            log.warning("spans are lost: the collector takes too long", extra={"waited_s": wait_s_max})


class Traces:
    """The ring: up to `kept_max` traces, and so many spans that they fit with 16 each; who came last stays longest.

    Reading gives cold traces first, then the slowest.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._spans_max = max(SPANS_A_TRACE_MAX, kept_max * SPANS_A_TRACE_MEAN_MAX)
        self._spans = 0
        self._requests: OrderedDict[str, Trace] = OrderedDict()
        self._cold_starts: deque[Trace] = deque(maxlen=COLD_STARTS_KEPT_MAX)
        self._unsent: deque[tuple[str, list[Span]]] = deque(maxlen=kept_max + COLD_STARTS_KEPT_MAX)
        self._starting = threading.Lock()
        self.exporter: Exporter | None = None

    def start_export(self, endpoint: str, service: str) -> None:
        """Send everything that is recorded to a collector, what was recorded so far too. Idempotent; in any thread."""
        with self._starting:
            self.exporter = self.exporter or Exporter(endpoint, service)
            while self._unsent:
                self._export(*self._unsent.popleft())

    def end_export(self, endpoint: str, service: str, wait_s_max: float) -> None:
        """Send what is left, even if nothing was sent so far; see `Exporter.close`."""
        self.start_export(endpoint, service)
        assert self.exporter is not None
        self.exporter.close(wait_s_max)

    def record(self, trace_id: str, spans: Iterable[Span]) -> None:
        """Add this instance's own spans to a request's trace, and export them."""
        spans = list(spans)
        self.receive(trace_id, spans)
        self._export(trace_id, spans)

    def receive(self, trace_id: str, spans: list[Span]) -> None:
        """Add spans that another process made and exports by itself."""
        if not spans:
            return
        trace = self._requests.get(trace_id)
        if trace is None:
            trace = self._requests[trace_id] = Trace(trace_id=trace_id, spans=[])
        self._requests.move_to_end(trace_id)
        added = spans[: SPANS_A_TRACE_MAX - len(trace.spans)]
        trace.spans.extend(added)
        self._spans += len(added)
        while len(self._requests) > self._kept_max or self._spans > self._spans_max:
            _, oldest = self._requests.popitem(last=False)
            self._spans -= len(oldest.spans)

    def record_cold_start(self, trace: Trace) -> None:
        """Keep the trace of an instance's or a lane's start."""
        self._cold_starts.append(trace)
        self._export(trace.trace_id, trace.spans)

    def read(self, count_max: int, *, cold_only: bool = False) -> list[Trace]:
        """Traces in the order they are worth reading: cold starts by age, cold requests, then the slowest."""
        requests = sorted(self._requests.values(), key=lambda trace: (not trace.cold, -trace.duration_ns))
        if cold_only:
            requests = [trace for trace in requests if trace.cold]
        return [*self._cold_starts, *requests][:count_max]

    def _export(self, trace_id: str, spans: list[Span]) -> None:
        if self.exporter is None:
            self._unsent.append((trace_id, spans))
        else:
            for span in spans:
                self.exporter.send(trace_id, span)


def trace_context(traceparent: str | None) -> tuple[str, str]:
    """(trace id, parent span id) of a W3C traceparent; a new trace where there is none or it is malformed."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return (match[1], match[2]) if match else (new_trace_id(), "")


def new_trace_id() -> str:
    """A random W3C trace id."""
    return secrets.token_hex(16)


def new_span_id() -> str:
    """A random W3C span id."""
    return secrets.token_hex(8)


def received_spans(body: bytes) -> dict[str, list[Span]]:
    """Spans of an OTLP/HTTP protobuf export request, by trace id; those whose ids are not of W3C's length are left out.

    Raises:
        ValueError: it is not one.
        TooLarge: it has more than EXPORT_SPANS_MAX spans.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise ValueError(f"body: not an OTLP ExportTraceServiceRequest in protobuf: {error}") from error
    spans: dict[str, list[Span]] = {}
    for service, span in _found(request):
        if _identified(span):
            spans.setdefault(span.trace_id.hex(), []).append(_received(span, service))
    return spans


def _found(request: Any) -> list[tuple[str, Any]]:
    """(service, span) of every span. All counts are looked at first: a part costs more to look into than to send."""
    if len(request.resource_spans) > EXPORT_SPANS_MAX:
        raise _too_many()
    scopes: list[tuple[Any, Any]] = []
    for one in request.resource_spans:
        if len(scopes) + len(one.scope_spans) > EXPORT_SPANS_MAX:
            raise _too_many()
        scopes.extend((one.resource, scope) for scope in one.scope_spans)
    if sum(len(scope.spans) for _, scope in scopes) > EXPORT_SPANS_MAX:
        raise _too_many()
    return [(service, span) for resource, scope in scopes for service in [_service(resource)] for span in scope.spans]


def _service(resource: Any) -> str:
    pairs = islice(resource.attributes, ATTRIBUTES_MAX)
    return next((_cut(pair.value.string_value) for pair in pairs if pair.key == "service.name"), "")


def _too_many() -> TooLarge:
    return TooLarge(f"body: more than {EXPORT_SPANS_MAX} spans, allowed: {EXPORT_SPANS_MAX} in one export")


def _identified(span: Any) -> bool:
    """Whether its ids are as long as ids are; what a span without them belongs to cannot be known."""
    return len(span.trace_id) == 16 and len(span.span_id) == 8 and len(span.parent_span_id) in {0, 8}


def _received(span: Any, service: str) -> Span:
    return Span(
        name=span.name[:NAME_CHARACTERS_MAX],
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=max(span.start_time_unix_nano, span.end_time_unix_nano),
        attributes={**_attributes(span.attributes), "service.name": service},
    )


def _attributes(pairs: Iterable[Any]) -> Mapping[str, Any]:
    return {
        pair.key[:NAME_CHARACTERS_MAX]: _cut(getattr(pair.value, pair.value.WhichOneof("value") or "string_value"))
        for pair in islice(pairs, ATTRIBUTES_MAX)
        if _plain(pair)
    }


def _cut(value: Any) -> Any:
    return value[:ATTRIBUTE_CHARACTERS_MAX] if isinstance(value, str) else value


def _plain(pair: Any) -> bool:
    return pair.value.WhichOneof("value") in {"string_value", "bool_value", "int_value", "double_value"}
