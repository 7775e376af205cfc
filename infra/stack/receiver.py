"""An OTLP receiver whose traces a person can read: spans of functions and instances, in the form of an instance.

    python -m infra.stack.receiver --port 4318
    warmpool traces --url http://127.0.0.1:4318

It takes POST /v1/traces (OTLP over HTTP in protobuf) and answers GET /v1/traces?count=N as an instance does, the trace
that changed last first. It holds a bounded number of spans in memory, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import uvicorn
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.loopback import HOST, port

TRACES_MAX = 1000
SPANS_A_TRACE_MAX = 1000
BODY_BYTES_MAX = 16 << 20
PROTOBUF = "application/x-protobuf"
COUNT_DEFAULT = 20
NAMES = {"service.name", "service.instance.id"}  # of a resource, kept with each of its spans


class Received:
    """The traces that were received, up to TRACES_MAX of them; those that did not change for the longest go first."""

    def __init__(self) -> None:
        self._traces: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def add(self, request: ExportTraceServiceRequest) -> None:
        """Add the spans of an export; of a trace that has SPANS_A_TRACE_MAX no more are kept."""
        for trace_id, span in spans(request):
            kept = self._traces.setdefault(trace_id, [])
            self._traces.move_to_end(trace_id)
            if len(kept) < SPANS_A_TRACE_MAX:
                kept.append(span)
        while len(self._traces) > TRACES_MAX:
            self._traces.popitem(last=False)

    def read(self, count_max: int, *, cold_only: bool = False) -> list[dict[str, Any]]:
        """The traces that changed last, as an instance has them."""
        newest: Iterator[dict[str, Any]] = (
            {"trace_id": key, "spans": list(found)} for key, found in reversed(self._traces.items())
        )
        wanted = [one for one in newest if not cold_only or any(_is_cold(span) for span in one["spans"])]
        return wanted[:count_max]


def spans(request: ExportTraceServiceRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Trace id and span of every span of an export. Whose ids are not as long as W3C has them is left out."""
    for resource in request.resource_spans:
        named = {key: value for key, value in _plain(resource.resource.attributes) if key in NAMES}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            if len(span.trace_id) == 16 and len(span.span_id) == 8:
                yield (
                    span.trace_id.hex(),
                    {
                        "name": span.name,
                        "span_id": span.span_id.hex(),
                        "parent_id": span.parent_span_id.hex(),
                        "start_ns": span.start_time_unix_nano,
                        "end_ns": max(span.start_time_unix_nano, span.end_time_unix_nano),
                        "attributes": {**dict(_plain(span.attributes)), **named},
                    },
                )


def application() -> Starlette:
    """The receiver as an ASGI application, with no traces yet."""
    received = Received()

    async def export(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        if kind != PROTOBUF or "content-encoding" in request.headers:
            return _refused(415, f"content-type is {kind!r}, allowed: {PROTOBUF}, not compressed")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return _refused(413, f"body is too large, allowed: {BODY_BYTES_MAX} bytes")
        try:
            received.add(ExportTraceServiceRequest.FromString(bytes(body)))
        except DecodeError as error:
            return _refused(400, f"body is no ExportTraceServiceRequest: {error}")
        return Response(b"", media_type=PROTOBUF)  # an empty ExportTraceServiceResponse

    async def read(request: Request) -> Response:
        count = request.query_params.get("count", str(COUNT_DEFAULT))
        if not (count.isascii() and count.isdecimal() and 0 < int(count) <= TRACES_MAX):
            return _refused(400, f"count is {count[:20]!r}, allowed: 1 to {TRACES_MAX}")
        return JSONResponse(received.read(int(count), cold_only=request.query_params.get("cold") == "1"))

    return Starlette(routes=[Route("/v1/traces", export, methods=["POST"]), Route("/v1/traces", read, methods=["GET"])])


def main(arguments: list[str] | None = None) -> int:
    """Receive until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m infra.stack.receiver", description="Receive traces.")
    parser.add_argument("--port", type=port, default="4318", help="OTLP over HTTP (%(default)s)")
    chosen = parser.parse_args(arguments)
    uvicorn.run(application(), host=HOST, port=chosen.port, access_log=False, log_level="info")
    return 0


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


def _is_cold(span: dict[str, Any]) -> bool:
    return bool(span["attributes"].get("warmpool.cold"))


def _plain(pairs: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Those attributes that are text, numbers or truth values."""
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in {"string_value", "bool_value", "int_value", "double_value"}:
            yield pair.key, getattr(pair.value, kind)


if __name__ == "__main__":
    sys.exit(main())
