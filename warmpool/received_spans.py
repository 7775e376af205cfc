"""Spans that other processes made, as OTLP over HTTP brings them: bounded, whoever sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from warmpool.errors import TooLarge
from warmpool.tracing import Span

NAME_CHARACTERS_MAX = 128
ATTRIBUTES_MAX = 32
ATTRIBUTE_CHARACTERS_MAX = 512
EXPORT_BYTES_MAX = 1 << 20
EXPORT_SPANS_MAX = 1024  # the SDK sends up to 512 at a time


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
