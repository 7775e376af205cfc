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

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from warmpool.datatypes import DATATYPES, datatype_named, element_count
from warmpool.errors import BadInput
from warmpool.tensors import Buffer, Tensor, named_non_finite, unpack

__all__ = [
    "DATATYPES",
    "FRONT_HEADER",
    "HEADER_LENGTH",
    "TIMEOUT_HEADER",
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

HEADER_LENGTH = "Inference-Header-Content-Length"
HEADER_LENGTH_DIGITS_MAX = 18
TIMEOUT_HEADER = "x-warmpool-timeout-ms"  # how long the caller waits
TRACE_ID_HEADER = "x-warmpool-trace-id"
FRONT_HEADER = "x-warmpool-front-ns"  # begin and end of the front's span: the rest of a call was spent on the way
TENSORS_MAX = 256

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
class _TensorRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class _OutputRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    parameters: dict[str, Any] = {}


class _RequestRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str = ""
    parameters: Parameters = {}
    inputs: list[_TensorRecord]
    outputs: list[_OutputRecord] = []


class _ResponseRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    model_name: str
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_TensorRecord]


_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(_RequestRecord)
_response_decoder = msgspec.json.Decoder(_ResponseRecord)


def encode_request(request: InferRequest, *, binary: bool = True) -> tuple[bytes, int | None]:
    """Return a request's body, and the length of its JSON where bytes follow (the header's value), else None.

    Raises:
        BadInput: A tensor's bytes do not fit its shape.
    """
    records, parts = _records(request.inputs, "inputs", lambda _name: binary)
    outputs = [
        _OutputRecord(name=output.name, parameters={} if output.binary is None else {"binary_data": output.binary})
        for output in request.outputs
    ]
    return _body(_RequestRecord(id=request.id, parameters=request.parameters, inputs=records, outputs=outputs), parts)


def decode_request(body: Buffer, header_length: str | int | None = None) -> InferRequest:
    """Return the request that a body holds; its tensors are views of the body.

    Args:
        body: The whole body.
        header_length: The value of `Inference-Header-Content-Length`, None where the request has no such header.

    Raises:
        BadInput: Anything in it breaks the protocol; the message names the field.
    """
    record, tail = _parsed(_request_decoder, body, header_length)
    outputs = tuple(_output(output, f"outputs[{index}]") for index, output in enumerate(record.outputs))
    _refuse_duplicates([output.name for output in outputs], "outputs")
    binary_all = record.parameters.get("binary_data_output", False)
    if type(binary_all) is not bool:
        raise BadInput.about("parameters.binary_data_output", binary_all, "true or false")
    inputs = _tensors(record.inputs, tail, "inputs")
    return InferRequest(id=record.id, parameters=record.parameters, inputs=inputs, outputs=outputs)


def encode_response(response: InferResponse, wants_binary: Callable[[str], bool]) -> tuple[bytes, int | None]:
    """Return a response's body and the length of its JSON where bytes follow, else None.

    Args:
        response: What to send.
        wants_binary: Whether an output goes as bytes: the request's `wants_binary`.

    Raises:
        BadInput: A tensor's bytes do not fit its shape.
    """
    records, parts = _records(response.outputs, "outputs", wants_binary)
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
        outputs=_tensors(record.outputs, tail, "outputs"),
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


def _tensors(records: list[_TensorRecord], tail: memoryview | None, field: str) -> dict[str, Tensor]:
    if len(records) > TENSORS_MAX:
        raise BadInput(f"{field}: got {len(records)} tensors; allowed: up to {TENSORS_MAX}")
    tensors: dict[str, Tensor] = {}
    offset = 0
    for index, record in enumerate(records):
        where = f"{field}[{index}] ({record.name})"
        size = record.parameters.get("binary_data_size")
        if (size is None) == (record.data is msgspec.UNSET):
            raise BadInput(f"{where}: has both or neither of data and parameters.binary_data_size; give one of them")
        if size is None:
            tensors[record.name] = Tensor.of(record.datatype, record.data, record.shape, field=where)
        else:
            tensors[record.name] = _from_bytes(record, size, tail, offset, where)
            offset += size
    if len(tensors) != len(records):
        _refuse_duplicates([record.name for record in records], field)
    if tail is not None and offset != len(tail):
        raise BadInput(f"body: got {len(tail)} bytes after the JSON; allowed: {offset}, the sum of binary_data_size")
    return tensors


def _from_bytes(record: _TensorRecord, size: Any, tail: memoryview | None, offset: int, where: str) -> Tensor:
    kind = datatype_named(record.datatype, where)
    expected = element_count(record.shape, where) * kind.item_bytes
    if tail is None:
        raise BadInput(f"{HEADER_LENGTH}: is missing; {where} has binary_data_size, so it must say where the JSON ends")
    if type(size) is not int or size != expected:
        allowed = f"{expected}, the bytes of {record.datatype} {list(record.shape)}"
        raise BadInput.about(f"{where}.parameters.binary_data_size", size, allowed)
    data = tail[offset : offset + size]
    if len(data) != size:
        raise BadInput(f"body: got {len(tail)} bytes after the JSON; allowed: {offset + size}, where {where} ends")
    if kind.kind == "bool" and bytes(data).translate(None, b"\x00\x01"):
        raise BadInput(f"{where}: holds bytes other than 0 and 1; allowed: 0 or 1 for each BOOL")
    return Tensor(record.datatype, record.shape, data)


def _output(record: _OutputRecord, where: str) -> Output:
    binary = record.parameters.get("binary_data")
    if binary is not None and type(binary) is not bool:
        raise BadInput.about(f"{where}.parameters.binary_data", binary, "true or false")
    if "classification" in record.parameters:
        raise BadInput(f"{where}.parameters.classification: is not served; ask for the tensor and rank it")
    return Output(record.name, binary)


def _refuse_duplicates(names: list[str], field: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise BadInput.about(f"{field}[{index}].name", name, "each name once")
        seen.add(name)


def _records(
    tensors: Mapping[str, Tensor], field: str, wants_binary: Callable[[str], bool]
) -> tuple[list[_TensorRecord], list[Buffer]]:
    """Return the JSON forms of tensors, and the bytes that follow the JSON."""
    records: list[_TensorRecord] = []
    parts: list[Buffer] = []
    for name, tensor in tensors.items():
        where = f"{field} ({name})"
        kind = datatype_named(tensor.datatype, where)
        count = element_count(tensor.shape, where)
        size = count * kind.item_bytes
        if tensor.nbytes != size:
            allowed = f"{size}, as {tensor.datatype} {list(tensor.shape)} has"
            raise BadInput(f"{where}: got {tensor.nbytes} bytes; allowed: {allowed}")
        parameters: dict[str, Any] = {}
        data: Any = msgspec.UNSET
        if wants_binary(name):
            parameters = {"binary_data_size": size}
            parts.append(tensor.data)
        else:
            data = unpack(kind, tensor.data, (count,))
            data = named_non_finite(data) if kind.kind == "float" else data
        records.append(
            _TensorRecord(name=name, datatype=kind.name, shape=tensor.shape, parameters=parameters, data=data)
        )
    return records, parts


def _body(record: _RequestRecord | _ResponseRecord, parts: list[Buffer]) -> tuple[bytes, int | None]:
    head = _encoder.encode(record)
    return (b"".join((head, *parts)), len(head)) if parts else (head, None)
