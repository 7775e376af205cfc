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

from warmpool import __version__
from warmpool.dataplane import metadata
from warmpool.datatypes import datatype_named, element_count
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
from warmpool.limits import REST_BYTES_MAX, request_bytes_max
from warmpool.settings import PortTaken
from warmpool.tensor_records import Accept, check_count
from warmpool.tensors import Tensor
from warmpool.tracing import trace_context
from warmpool.validation import sizes_of

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

# Where a tensor's numbers are when they are not raw bytes, by the kind and size of its datatype.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


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
        """Bytes that a message may have: what a request for the largest of all methods has."""
        models = self.instance.dataplane.catalog.models.values()
        methods = (method for model in models for method in model.methods.values())
        return request_bytes_max(methods, self.instance.settings.body_bytes_max)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return protocol.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return protocol.ServerReadyResponse(ready=not self.instance.unready_reasons())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return protocol.ServerMetadataResponse(name="warmpool", version=__version__)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        method = self.instance.dataplane.method(request.name, request.version or None)
        return protocol.ModelReadyResponse(ready=self.instance.model_ready(self.instance.dataplane.model(method.model)))

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
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        trace_id, parent_id = trace_context(headers.get("traceparent"))
        start_ns = time.time_ns()
        answer, code = None, grpc.StatusCode.CANCELLED  # what it stays where the caller goes away
        try:
            method = self.instance.dataplane.method(request.model_name, request.model_version or None)
            check_count(len(request.outputs), "outputs")
            wanted = [output.name for output in request.outputs]
            timeout_s = _timeout_s(context, self.instance.settings.deadline_ms / 1000)
            inputs = _tensors(request, lambda described: sizes_of(method, described))
            answer = await self.instance.dataplane.infer(method, inputs, wanted=wanted, timeout_s=timeout_s)
            response = _response(request, answer, trace_id)
            code = grpc.StatusCode.OK
        except Exception as error:
            code = _code(error)
            raise
        finally:
            self.instance.record_request(
                trace_id,
                parent_id,
                start_ns=start_ns,
                end_ns=time.time_ns(),
                answer=answer,
                model=request.model_name,
                status=code.name,
            )
        return response


def _response(request: Any, answer: Any, trace_id: str) -> Any:
    response = protocol.ModelInferResponse(
        model_name=request.model_name, model_version=answer.method.version, id=request.id
    )
    for name, value in {**answer.served(), "trace_id": trace_id}.items():
        _set_parameter(response.parameters[name], value)
    for name, tensor in answer.tensors().items():
        response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(bytes(tensor.data))
    return response


def _tensors(request: Any, accept: Accept) -> dict[str, Tensor]:
    """The request's tensors, from raw bytes or typed contents; `accept` sees them before a number is converted.

    Raises:
        BadInput: they break the protocol, or `accept` refuses.
    """
    check_count(len(request.inputs), "inputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadInput.about("raw_input_contents", len(raw), f"{len(request.inputs)}, one for each input")
    tensors: dict[str, Tensor] = {}
    for index, given in enumerate(request.inputs):
        field = f"inputs[{index}]"
        if given.name in tensors:
            raise BadInput.about(f"{field}.name", given.name, "each name once")
        shape = tuple(given.shape)
        size = element_count(shape, field) * datatype_named(given.datatype, field).item_bytes
        if not raw:
            _check_contents(given, field)
        elif given.contents.ListFields():
            raise BadInput.about(f"{field}.contents", "numbers", "none beside raw_input_contents")
        elif len(raw[index]) != size:
            raise BadInput.about(f"raw_input_contents[{index}]", f"{len(raw[index])} bytes", f"{size} bytes")
        tensors[given.name] = Tensor(given.datatype, shape, raw[index] if raw else b"")
    accept(tensors)
    if raw:
        return tensors
    return {
        given.name: _typed(given, tensors[given.name].shape, f"inputs[{index}]")
        for index, given in enumerate(request.inputs)
    }


def _check_contents(given: Any, field: str) -> None:
    name = _CONTENTS.get(given.datatype)
    if name is None:
        raise BadInput(f"{field}: {given.datatype} has no typed contents; send raw_input_contents")
    for other, values in given.contents.ListFields():
        if other.name != name:
            allowed = f"{given.datatype} in {name}"
            raise BadInput.about(f"{field}.contents.{other.name}", f"{len(values)} numbers", allowed)


def _typed(given: Any, shape: tuple[int, ...], field: str) -> Tensor:
    name = _CONTENTS[given.datatype]
    values = getattr(given.contents, name)
    if len(values) != math.prod(shape):
        raise BadInput.about(f"{field}.contents.{name}", f"{len(values)} numbers", f"{math.prod(shape)} numbers")
    return Tensor.of(given.datatype, list(values), shape, field=f"{field}.contents.{name}")


def _set_parameter(parameter: Any, value: Any) -> None:
    match value:
        case bool():
            parameter.bool_param = value
        case int():
            parameter.int64_param = value
        case float():
            parameter.double_param = value
        case _:
            parameter.string_param = str(value)


def _timeout_s(context: Any, default_s: float) -> float:
    """The caller's deadline; a call without one gets the instance's."""
    remaining_s = context.time_remaining()
    return default_s if remaining_s is None or not math.isfinite(remaining_s) else max(remaining_s, 0.0)


def _code(error: Exception) -> grpc.StatusCode:
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), grpc.StatusCode.INTERNAL)
