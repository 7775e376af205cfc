"""The messages of the Open Inference Protocol (V2) over HTTP, for both ends: JSON and the binary tensor extension.

A body is one JSON object, which the raw bytes of tensors may follow; the header `Inference-Header-Content-Length`
then says where the JSON ends, and each tensor's `binary_data_size` how many of the bytes are its own, in the order of
the JSON. Decoded tensors are views of the body: nothing is copied. Numbers that JSON lacks are the strings "NaN",
"Infinity" and "-Infinity".

The front, the functions and the tests read and write bodies with these functions only. There is no numpy here,
because a function imports this file; the front views a tensor with `numpy.frombuffer(tensor.data,
DATATYPES[tensor.datatype].dtype)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from warmpool import tensor_records
from warmpool.datatypes import DATATYPES
from warmpool.errors import BadInput
from warmpool.tensor_records import HEADER_LENGTH, TensorRecord, check_count, refuse_duplicates
from warmpool.tensors import Buffer, Tensor, named_non_finite

__all__ = [
    "DATATYPES",
    "FRONT_HEADER",
    "HEADER_LENGTH",
    "PRIORITY_HEADER",
    "PRIORITY_LEVEL_MAX",
    "TIMEOUT_HEADER",
    "TIMEOUT_MS_MAX",
    "TRACE_ID_HEADER",
    "InferRequest",
    "InferResponse",
    "Output",
    "Tensor",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "named_non_finite",
]

HEADER_LENGTH_DIGITS_MAX = 18
TIMEOUT_HEADER = "x-warmpool-timeout-ms"  # how long the caller waits, from 1
TIMEOUT_MS_MAX = 24 * 3600 * 1000
PRIORITY_HEADER = "x-warmpool-priority"  # 0 for the default, 1 for the most urgent to
PRIORITY_LEVEL_MAX = 7  # for the least urgent
TRACE_ID_HEADER = "x-warmpool-trace-id"
FRONT_HEADER = "x-warmpool-front-ns"  # begin and end of the front's span: the rest of a call was spent on the way

Scalar = str | bool | int | float
Parameters = dict[str, Scalar]


class Output(msgspec.Struct, frozen=True):
    """A requested output; `binary` None leaves its form to the request's `binary_data_output`."""

    name: str
    binary: bool | None = None


class InferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to infer. No `outputs` means all of them. Model, version and method are in the URL."""

    inputs: dict[str, Tensor]
    outputs: tuple[Output, ...] = ()
    parameters: Parameters = {}
    id: str = ""

    def wants_binary(self, name: str) -> bool:
        """Tell whether the caller asked for this output as bytes."""
        for output in self.outputs:
            if output.name == name and output.binary is not None:
                return output.binary
        return self.parameters.get("binary_data_output") is True


class InferResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What was inferred, by which version of which model; `parameters` say how it was served."""

    model_name: str
    model_version: str = ""
    outputs: dict[str, Tensor]
    parameters: dict[str, Any] = {}
    id: str = ""


# Unknown fields are refused: silence would hide a caller's mistake.
class _OutputRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    parameters: dict[str, Any] = {}


class _RequestRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str = ""
    parameters: Parameters = {}
    inputs: list[TensorRecord]
    outputs: list[_OutputRecord] = []


class _ResponseRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    model_name: str
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[TensorRecord]


_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(_RequestRecord)
_response_decoder = msgspec.json.Decoder(_ResponseRecord)


def encode_request(request: InferRequest, *, binary: bool = True) -> tuple[bytes, int | None]:
    """Return a request's body, and the length of its JSON where bytes follow (the header's value), else None.

    Raises:
        BadInput: A tensor's bytes do not fit its shape.
    """
    records, parts = tensor_records.encoded(request.inputs, "inputs", lambda _name: binary)
    outputs = [
        _OutputRecord(name=output.name, parameters={} if output.binary is None else {"binary_data": output.binary})
        for output in request.outputs
    ]
    return _body(_RequestRecord(id=request.id, parameters=request.parameters, inputs=records, outputs=outputs), parts)


def decode_request(
    body: Buffer,
    header_length: str | int | None = None,
    *,
    route: Callable[[Parameters], object] | None = None,
    accept: tensor_records.Accept | None = None,
) -> InferRequest:
    """Return the request that a body holds; its tensors are views of the body.

    Args:
        body: The whole body.
        header_length: The value of `Inference-Header-Content-Length`, None where the request has no such header.
        route: Is shown the parameters before anything else is looked at. What it raises is the refusal.
        accept: Is shown the inputs before a number in JSON is converted: datatypes and shapes count, those in JSON
            have no data yet. What it raises is the refusal. Bytes need no conversion, and nobody is asked.

    Raises:
        BadInput: Anything in it breaks the protocol; the message names the field.
    """
    record, tail = _parsed(_request_decoder, body, header_length)
    if route is not None:
        route(record.parameters)
    check_count(len(record.outputs), "outputs")
    outputs = tuple(_output(output, f"outputs[{index}]") for index, output in enumerate(record.outputs))
    refuse_duplicates([output.name for output in outputs], "outputs")
    binary_all = record.parameters.get("binary_data_output", False)
    if type(binary_all) is not bool:
        raise BadInput.about("parameters.binary_data_output", binary_all, "true or false")
    inputs = tensor_records.decoded(record.inputs, tail, "inputs", accept)
    return InferRequest(id=record.id, parameters=record.parameters, inputs=inputs, outputs=outputs)


def encode_response(response: InferResponse, wants_binary: Callable[[str], bool]) -> tuple[bytes, int | None]:
    """Return a response's body and the length of its JSON where bytes follow, else None.

    Args:
        response: What to send.
        wants_binary: Whether an output goes as bytes: the request's `wants_binary`.

    Raises:
        BadInput: A tensor's bytes do not fit its shape.
    """
    records, parts = tensor_records.encoded(response.outputs, "outputs", wants_binary)
    record = _ResponseRecord(
        model_name=response.model_name,
        model_version=response.model_version,
        id=response.id,
        parameters=response.parameters,
        outputs=records,
    )
    return _body(record, parts)


def decode_response(body: Buffer, header_length: str | int | None = None) -> InferResponse:
    """Return the response that a body holds; its tensors are views of the body.

    Raises:
        BadInput: Anything in it breaks the protocol.
    """
    record, tail = _parsed(_response_decoder, body, header_length)
    return InferResponse(
        model_name=record.model_name,
        model_version=record.model_version,
        id=record.id,
        parameters=record.parameters,
        outputs=tensor_records.decoded(record.outputs, tail, "outputs"),
    )


def _parsed[R](
    decoder: msgspec.json.Decoder[R], body: Buffer, header_length: str | int | None
) -> tuple[R, memoryview | None]:
    """Split a body and parse its JSON. The second part is None where no header announced one."""
    head: Buffer = body
    tail = None
    if header_length is not None:
        split = _split_at(header_length, len(body))
        view = memoryview(body)
        head, tail = view[:split], view[split:]
    try:
        return decoder.decode(head), tail
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise BadInput(f"{path.rstrip('`').lstrip('.') or 'body'}: {message}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"body: not valid JSON: {error}") from None


def _split_at(header_length: str | int, body_bytes: int) -> int:
    text = str(header_length)
    # isdecimal alone takes other scripts' digits; a huge number of digits must not reach int().
    plain = text.isascii() and text.isdecimal() and len(text) <= HEADER_LENGTH_DIGITS_MAX
    if not plain or int(text) > body_bytes:
        raise BadInput.about(HEADER_LENGTH, header_length, f"a number from 0 to {body_bytes}, the length of the body")
    return int(text)


def _output(record: _OutputRecord, where: str) -> Output:
    binary = record.parameters.get("binary_data")
    if binary is not None and type(binary) is not bool:
        raise BadInput.about(f"{where}.parameters.binary_data", binary, "true or false")
    if "classification" in record.parameters:
        raise BadInput(f"{where}.parameters.classification: is not served; ask for the tensor and rank it")
    return Output(record.name, binary)


def _body(record: _RequestRecord | _ResponseRecord, parts: list[Buffer]) -> tuple[bytes, int | None]:
    head = _encoder.encode(record)
    return (b"".join((head, *parts)), len(head)) if parts else (head, None)
