"""The spans of a function, and the way of its trace to the instance and to a collector.

    function            the whole request
    ├── function.pre    until the first call of the pool: the author's pre-processing
    ├── pool.infer      each call of the pool, retries included
    │   ├── pool.request    until the instance had the request
    │   ├── front           the instance's own spans
    │   └── pool.response   from when the instance had the answer
    └── function.post   between and after calls: the author's post-processing and the response

The leaves follow one another with shared time stamps, so they sum to the whole. Where calls overlap, post starts when
none is left.

Only `opentelemetry-api` is imported. The SDK and its exporter (requests, protobuf: 0.2 s) are loaded in `prepare`
alone, and only where an OTLP endpoint is configured, or OTEL_TRACES_EXPORTER is `console`: then each span is a line of
JSON on standard output, as an instance's is. OTEL_TRACES_SAMPLER says which traces; instances hear of it and follow.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
CONSOLE = "console"
EXPORT_DELAY_MS = 200
EXPORT_TIMEOUT_S = 2.0
COMPLAINT_PAUSE_S = 60.0

Plain = str | bool | int | float

tracer = trace.get_tracer("xla-warmpool.functions")
_propagator = TraceContextTextMapPropagator()
_random = random.SystemRandom()
_requests = itertools.count()  # of this process


class Call:
    """One call of the pool: its span, and the headers that carry the trace to the instance."""

    __slots__ = ("_front_ns", "_span", "_start_ns", "headers")

    def __init__(self, parent: otel_context.Context | None = None, start_ns: int | None = None) -> None:
        self._start_ns = start_ns or time.time_ns()
        self._front_ns: tuple[int, int] | None = None
        self._span = tracer.start_span("pool.infer", context=parent, kind=SpanKind.CLIENT, start_time=self._start_ns)
        self.headers: dict[str, str] = {}
        _propagator.inject(self.headers, trace.set_span_in_context(self._span, parent))

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the span."""
        if self._span.is_recording():
            self._span.set_attributes({key: value for key, value in attributes.items() if isinstance(value, Plain)})

    def answered(self, front_ns: tuple[int, int] | None) -> None:
        """Take note of when the instance had the request and when it had the answer, by its own clock."""
        self._front_ns = front_ns

    def end(self, error: BaseException | None = None, end_ns: int | None = None) -> None:
        """End the span, as failed where there is an error. Messages stay out of it: they may quote a caller's input."""
        end_ns = end_ns or time.time_ns()
        if self._front_ns is not None and self._span.is_recording():
            self._add_ways(*self._front_ns, end_ns)
        _end(self._span, error, end_ns)

    def _add_ways(self, there_ns: int, back_ns: int, end_ns: int) -> None:
        """Add spans of the way there and of the way back.

        Where the instance's clock is not ours, each gets half of what both took together.
        """
        if not self._start_ns <= there_ns <= back_ns <= end_ns:
            half_ns = max(end_ns - self._start_ns - (back_ns - there_ns), 0) // 2
            there_ns, back_ns = self._start_ns + half_ns, end_ns - half_ns
        context = trace.set_span_in_context(self._span)
        for name, begin_ns, until_ns in (
            ("pool.request", self._start_ns, there_ns),
            ("pool.response", back_ns, end_ns),
        ):
            tracer.start_span(name, context=context, start_time=begin_ns).end(until_ns)


class RequestTrace:
    """The spans of one request of a function."""

    __slots__ = ("_calls", "_context", "_phase", "_root", "_token")

    def __init__(self, name: str, headers: Mapping[str, str]) -> None:
        now_ns = time.time_ns()
        parent = _propagator.extract(headers)
        root = tracer.start_span(
            "function", context=parent, kind=SpanKind.SERVER, start_time=now_ns, attributes=_attributes(name)
        )
        # With neither an SDK nor a caller's trace nobody chose an id, and the instance's trace and our log shall agree.
        self._root: Span = root if root.get_span_context().is_valid else NonRecordingSpan(_new_context())
        self._context = trace.set_span_in_context(self._root, parent)
        self._token = otel_context.attach(self._context)
        self._calls = 0
        self._phase: Span | None = None
        self._enter("function.pre", now_ns)

    @property
    def trace_id(self) -> str:
        """The trace's id in hex."""
        return trace.format_trace_id(self._root.get_span_context().trace_id)

    def begin_call(self) -> Call:
        """End the author's phase and begin a call of the pool."""
        now_ns = time.time_ns()
        self._leave(now_ns)
        self._calls += 1
        return Call(self._context, now_ns)

    def end_call(self, call: Call, error: BaseException | None = None) -> None:
        """End a call; the author's phase goes on when it was the last in flight."""
        now_ns = time.time_ns()
        call.end(error, now_ns)
        self._calls -= 1
        if self._calls == 0:
            self._enter("function.post", now_ns)

    def finish(self, status: int, error: BaseException | None = None) -> None:
        """End the request with the status that its caller gets."""
        now_ns = time.time_ns()
        self._leave(now_ns)
        self._root.set_attribute("http.response.status_code", status)
        _end(self._root, error, now_ns)
        otel_context.detach(self._token)

    def _enter(self, name: str, now_ns: int) -> None:
        self._phase = tracer.start_span(name, context=self._context, start_time=now_ns)

    def _leave(self, now_ns: int) -> None:
        if self._phase is not None:
            self._phase.end(now_ns)
            self._phase = None


def prepare(service: str) -> Callable[[], None]:
    """Load the SDK where spans are to be exported, and return what starts it.

    Loading belongs to the import of a function and starting to its first request: between the two the server may
    fork, which the exporter's thread would not survive.
    """
    written = os.environ.get(EXPORTER_VARIABLE) == CONSOLE
    if not written and not any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return lambda: None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _console_exporter if written else _otlp_exporter()
    except ImportError:
        logger.warning("Spans are to be exported but opentelemetry-sdk and its OTLP/HTTP exporter are not installed")
        return lambda: None

    def start() -> None:
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return
        _limit_complaints()
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(BatchSpanProcessor(exporter(), schedule_delay_millis=EXPORT_DELAY_MS))
        trace.set_tracer_provider(provider)

    return start


def _otlp_exporter() -> Callable[[], SpanExporter]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return functools.partial(OTLPSpanExporter, timeout=EXPORT_TIMEOUT_S)


def _console_exporter() -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    lines = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)  # one write a line, between others' lines
    return ConsoleSpanExporter(out=lines, formatter=_line)


def _line(span: ReadableSpan) -> str:
    """A span without its trace state, in which callers may write what they like."""
    told = json.loads(span.to_json())
    del told["context"]["trace_state"]
    return f"{json.dumps(told)}\n"


class ComplaintFilter(logging.Filter):
    """Lets one record a minute through: a collector that is away is worth a line, not one for every batch."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._quiet_until_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether this record is written."""
        now_s = self._clock_s()
        if now_s < self._quiet_until_s:
            return False
        self._quiet_until_s = now_s + COMPLAINT_PAUSE_S
        # The exporter's own traceback says nothing that its message does not.
        record.exc_info = None
        return True


def _limit_complaints() -> None:
    complaints = ComplaintFilter()
    for name in (
        "opentelemetry.exporter.otlp.common.http",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.sdk._shared_internal",
        "opentelemetry.sdk.trace.export",
    ):
        logging.getLogger(name).addFilter(complaints)


def _attributes(name: str) -> dict[str, Any]:
    return {"faas.name": name, "faas.coldstart": next(_requests) == 0}


def _new_context() -> SpanContext:
    return SpanContext(
        trace_id=_random.getrandbits(128) or 1,
        span_id=_random.getrandbits(64) or 1,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _end(span: Span, error: BaseException | None, end_ns: int | None) -> None:
    if error is not None and span.is_recording():
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR))
    span.end(end_ns)
