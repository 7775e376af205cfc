"""gRPC: the Open Inference Protocol V2. An adapter like `warmpool.http_app`, over the same data plane.

The messages are the protocol's own generated package. It is imported with this file, after the lanes are on their way,
so that a cold start does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from open_inference.grpc import protocol

from warmpool import __version__, grpc_messages
from warmpool.dataplane import Answer, metadata
from warmpool.errors import (
    BadInput,
    Cancelled,
    DeadlineExceeded,
    LaneFailed,
    NotFound,
    NotWarm,
    Overloaded,
    RetryLater,
    TooLarge,
    WarmpoolError,
)
from warmpool.grpc_repository import RepositoryServicer
from warmpool.limits import REST_BYTES_MAX, request_bytes_max
from warmpool.settings import PortTaken
from warmpool.tensor_records import check_count
from warmpool.tracing import trace_context
from warmpool.urgency import Urgency
from warmpool.validation import sizes_of
from warmpool.version_routing import STICKY_HEADER, VERSION_HEADER, Wish

if TYPE_CHECKING:
    from warmpool.instance import Instance

log = logging.getLogger(__name__)

STATUS: dict[type[WarmpoolError], grpc.StatusCode] = {
    BadInput: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Cancelled: grpc.StatusCode.CANCELLED,
    LaneFailed: grpc.StatusCode.INTERNAL,
    NotWarm: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
}

Method = Callable[[Any, Any], Coroutine[Any, Any, Any]]


async def start_grpc(instance: Instance, host: str, port: int) -> grpc.aio.Server:
    """Bind and start the server. Raises PortTaken where it cannot bind."""
    limit = instance.settings.body_bytes_max
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # a second instance on the same port is a mistake, not a second listener
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", -1),
        ]
    )
    server.add_generic_rpc_handlers((handlers(Servicer(instance)),))
    address = f"[{host}]" if ":" in host else host  # IPv6
    try:
        server.add_insecure_port(f"{address}:{port}")
    except RuntimeError:
        raise PortTaken("grpc_port", host, port, "address in use") from None
    await server.start()
    return server


def handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    """The service's methods, guarded. They decode for themselves: gRPC answers what is no message in its own way."""
    service = protocol.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            guarded(getattr(servicer, method.name), getattr(protocol, method.input_type.name), servicer.bytes_max),
            response_serializer=getattr(protocol, method.output_type.name).SerializeToString,
        )
        for method in service.methods
    }
    for name, one in RepositoryServicer(servicer.instance).methods().items():
        methods[name] = grpc.unary_unary_rpc_method_handler(
            guarded(one.method, one.request, servicer.bytes_max), response_serializer=one.response.SerializeToString
        )
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def guarded(method: Method, kind: Any, bytes_max: Callable[[], int]) -> Method:
    """A method whose known errors become their statuses; the words of any other are for the log alone.

    Args:
        method: takes a message and the call's context.
        kind: the message's class.
        bytes_max: how long a message may be; asked for those that are not short.
    """

    async def answer(data: bytes, context: Any) -> Any:
        trailing: tuple[tuple[str, str], ...] = ()
        try:
            return await method(_decoded(data, kind, bytes_max), context)
        except WarmpoolError as error:
            code, message = _code(error), str(error)
            if isinstance(error, RetryLater):
                trailing = (("retry-after", error.retry_after),)
        except Exception:
            log.exception("call failed", extra={"request": kind.__name__})
            code, message = grpc.StatusCode.INTERNAL, "internal error"
        try:
            return await context.abort(code, message, trailing)  # raises
        except grpc.aio.InternalError:  # the caller went away meanwhile: there is nobody to tell
            raise asyncio.CancelledError from None

    return answer


def _decoded(data: bytes, kind: Any, bytes_max: Callable[[], int]) -> Any:
    if len(data) > REST_BYTES_MAX and len(data) > (allowed := bytes_max()):
        raise TooLarge(f"message: {len(data)} bytes, allowed: {allowed}")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadInput(f"message: not a {kind.__name__}") from None


class Servicer:
    """The protocol's methods; their names are the protocol's."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def bytes_max(self) -> int:
        """Bytes that a message may have: what a request for the largest of all methods has, once those are known."""
        if not self.instance.dataplane.read.is_set():
            return self.instance.settings.body_bytes_max
        models = self.instance.dataplane.catalog.versions.values()
        methods = (method for model in models for method in model.methods.values())
        return request_bytes_max(methods, self.instance.settings.body_bytes_max)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return protocol.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return protocol.ServerReadyResponse(ready=not self.instance.unready_reasons())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return protocol.ServerMetadataResponse(name="warmpool", version=__version__, extensions=["schedule_policy"])

    async def ModelReady(self, request: Any, context: Any) -> Any:
        method = self.instance.dataplane.method(request.name, request.version or None)
        model = self.instance.dataplane.model(method.model, method.version)
        return protocol.ModelReadyResponse(ready=self.instance.readiness.model_ready(model))

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        method = self.instance.dataplane.method(request.name, request.version or None)
        return protocol.ModelMetadataResponse(
            name=request.name,
            versions=[method.version],
            platform="jax_stablehlo",
            inputs=[protocol.ModelMetadataResponse.TensorMetadata(**metadata(spec)) for spec in method.spec.inputs],
            outputs=[protocol.ModelMetadataResponse.TensorMetadata(**metadata(spec)) for spec in method.spec.outputs],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        headers = [(key, value) for key, value in context.invocation_metadata() if isinstance(value, str)]
        trace = trace_context(dict(headers).get("traceparent"))
        start_ns = time.time_ns()
        answer, code = None, grpc.StatusCode.CANCELLED  # what it stays where the caller goes away
        try:
            with self.instance.byte_budget.hold() as held:
                held.raise_to(request.ByteSize())  # gRPC has received it before anybody is asked
                answer = await self._infer(request, context, headers)
                response = grpc_messages.response(request, answer, trace.trace_id)
            code = grpc.StatusCode.OK
        except Exception as error:
            code = _code(error)
            raise
        finally:
            self.instance.record_request(
                trace,
                start_ns=start_ns,
                end_ns=time.time_ns(),
                answer=answer,
                model=request.model_name,
                status=code.name,
            )
        return response

    async def _infer(self, request: Any, context: Any, headers: list[tuple[str, str]]) -> Answer:
        default_s = self.instance.settings.deadline_ms / 1000
        passed_s = await self.instance.dataplane.known(_timeout_s(context, Urgency.of_headers(headers), default_s))
        parameters = grpc_messages.known_parameters(request)
        said = dict(headers)
        wish = Wish.of(request.model_version, said.get(VERSION_HEADER, ""), said.get(STICKY_HEADER, ""))
        method = self.instance.dataplane.choose(request.model_name, wish.with_parameters(parameters))
        check_count(len(request.outputs), "outputs")
        wanted = [output.name for output in request.outputs]
        urgency = Urgency.of_headers(headers).with_parameters(parameters)
        timeout_s = _timeout_s(context, urgency, default_s, passed_s)
        inputs = grpc_messages.tensors(request, lambda described: sizes_of(method, described))
        return await self.instance.dataplane.infer(
            method,
            inputs,
            wanted=wanted,
            timeout_s=timeout_s,
            priority=urgency.priority,
            pinned=bool(wish.version),
        )


def _timeout_s(context: Any, urgency: Urgency, default_s: float, passed_s: float = 0.0) -> float:
    """The shorter of the call's deadline and what else it says of its time; the instance's default without either.

    Of what counts from the call's beginning `passed_s` are over.
    """
    remaining_s: float | None = context.time_remaining()
    if remaining_s is None or not math.isfinite(remaining_s):
        return max((urgency.timeout_s or default_s) - passed_s, 0.0)
    said_s = math.inf if urgency.timeout_s is None else urgency.timeout_s - passed_s
    return max(min(remaining_s, said_s), 0.0)


def _code(error: Exception) -> grpc.StatusCode:
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), grpc.StatusCode.INTERNAL)
