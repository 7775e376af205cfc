"""Traces of an instance: a bounded ring that is always there; where it is configured, OTLP or standard output, too.

A span is recorded as a plain value after the fact, with the times that the front, a lane or a function took, so that
recording costs a request next to nothing. Cold starts are kept apart, so that requests cannot push them out.

The OpenTelemetry SDK is imported here and nowhere else, and only to export.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

COLD_STARTS_KEPT_MAX = 32
SPANS_A_TRACE_MAX = 2048
SPANS_A_TRACE_MEAN_MAX = 16  # what the ring has room for: a request's own are 9, and its function has a few more
EXPORT_S_MAX = 2.0  # retries included; an instance that goes down waits for the last export
STANDARD_OUTPUT = "-"  # in place of a collector

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1  # of W3C's flags


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # thousands are kept, and none is in a circle
    """One span; times in nanoseconds since the epoch, `parent_id` "" for a root."""

    name: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = {}


class Trace(msgspec.Struct, kw_only=True, gc=False):
    """The spans of one trace, in the order they were recorded."""

    trace_id: str
    spans: list[Span] = []

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def start_ns(self) -> int:
        return min(span.start_ns for span in self.spans)

    @property
    def end_ns(self) -> int:
        return max(span.end_ns for span in self.spans)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def cold(self) -> bool:
        return any(span.attributes.get("warmpool.cold") for span in self.spans)

    def made(self) -> list[Span]:
        return self.spans


class Spans(Protocol):
    """What one process says of a trace: made into spans when somebody reads them, which are the same each time."""

    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def cold(self) -> bool: ...
    def __len__(self) -> int: ...
    def made(self) -> list[Span]:
        """The spans."""


class Exporter:
    """Sends spans to a collector, in batches, from the SDK's thread; a collector that is away costs no request.

    Args:
        endpoint: The collector's base URL, or "-": a line of JSON a span on standard output (see `logged_spans`).
        service: What the spans are said to be of.
    """

    def __init__(self, endpoint: str, service: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create({"service.name": service})
        self._sender = _written() if endpoint == STANDARD_OUTPUT else _sent(f"{endpoint.rstrip('/')}/v1/traces")
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
        self._requests: OrderedDict[str, _Kept] = OrderedDict()
        self._cold_starts: deque[Trace] = deque(maxlen=COLD_STARTS_KEPT_MAX)
        self._unsent: deque[tuple[str, Spans]] = deque(maxlen=kept_max + COLD_STARTS_KEPT_MAX)
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

    def record(self, trace_id: str, spans: Spans, *, sampled: bool = True) -> None:
        """Add this instance's own spans to a request's trace, and export them if it is `sampled`, or was cold."""
        self._keep(trace_id, spans)
        if sampled or spans.cold:
            self._export(trace_id, spans)

    def receive(self, trace_id: str, spans: list[Span]) -> None:
        """Add spans that another process made and exports by itself."""
        if spans:
            self._keep(trace_id, Trace(trace_id=trace_id, spans=spans))

    def _keep(self, trace_id: str, spans: Spans) -> None:
        kept = self._requests.get(trace_id)
        if kept is None:
            kept = self._requests[trace_id] = _Kept()
        self._requests.move_to_end(trace_id)
        self._spans += kept.add(spans)
        while len(self._requests) > self._kept_max or self._spans > self._spans_max:
            _, oldest = self._requests.popitem(last=False)
            self._spans -= oldest.count

    def record_cold_start(self, trace: Trace) -> None:
        """Keep the trace of an instance's or a lane's start."""
        self._cold_starts.append(trace)
        self._export(trace.trace_id, trace)

    def read(self, count_max: int, *, cold_only: bool = False) -> list[Trace]:
        """Traces in the order they are worth reading: cold starts by age, cold requests, then the slowest."""
        requests = [(trace_id, kept) for trace_id, kept in self._requests.items() if kept.cold or not cold_only]
        requests.sort(key=lambda one: (not one[1].cold, -one[1].duration_ns))
        starts = list(self._cold_starts)[:count_max]
        return [*starts, *(kept.trace(trace_id) for trace_id, kept in requests[: count_max - len(starts)])]

    def _export(self, trace_id: str, spans: Spans) -> None:
        if self.exporter is None:
            self._unsent.append((trace_id, spans))
        else:
            for span in spans.made():
                self.exporter.send(trace_id, span)


class _Kept:
    """What the ring has of a trace, in the order in which it came."""

    __slots__ = ("_parts", "count")

    def __init__(self) -> None:
        self._parts: list[Spans] = []
        self.count = 0

    def add(self, spans: Spans) -> int:
        """Keep further spans, as far as there is room; how many."""
        room = SPANS_A_TRACE_MAX - self.count
        if len(spans) > room:
            spans = Trace(trace_id="", spans=spans.made()[:room])
        if added := len(spans):
            self._parts.append(spans)
            self.count += added
        return added

    @property
    def cold(self) -> bool:
        return any(part.cold for part in self._parts)

    @property
    def duration_ns(self) -> int:
        return max(part.end_ns for part in self._parts) - min(part.start_ns for part in self._parts)

    def trace(self, trace_id: str) -> Trace:
        return Trace(trace_id=trace_id, spans=[span for part in self._parts for span in part.made()])


class Context(NamedTuple):
    """What a caller says of the trace that its request belongs to."""

    trace_id: str
    parent_id: str
    """The caller's span, "" for none."""
    sampled: bool
    """Whether the caller exports its own spans of it."""


def trace_context(traceparent: str | None) -> Context:
    """The context of a W3C traceparent; a new trace, which is sampled, where there is none or it is malformed."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return (
        Context(match[1], match[2], bool(int(match[3], 16) & _SAMPLED)) if match else Context(new_trace_id(), "", True)
    )


def new_trace_id() -> str:
    """A random W3C trace id."""
    return secrets.token_hex(16)


def new_span_id() -> str:
    """A random W3C span id."""
    return secrets.token_hex(8)


def _sent(url: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=url, timeout=EXPORT_S_MAX)


def _written() -> SpanExporter:
    """One write a line: what else writes there comes between lines; on a pipe into none of up to PIPE_BUF (4 KiB)."""
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    lines = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    return ConsoleSpanExporter(out=lines, formatter=lambda span: f"{span.to_json(indent=None)}\n")
