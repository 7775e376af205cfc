"""What gRPC's messages of an inference hold: tensors, parameters, answers.

The messages are the protocol's own generated package.
"""

from __future__ import annotations

import math
from typing import Any

from open_inference.grpc import protocol

from warmpool.dataplane import Answer
from warmpool.datatypes import datatype_named, element_count
from warmpool.errors import BadInput
from warmpool.tensor_records import Accept, check_count
from warmpool.tensors import Tensor
from warmpool.urgency import PARAMETERS
from warmpool.version_routing import STICKY_PARAMETER

# Where a tensor's numbers are when they are not raw bytes, by the kind and size of its datatype.
CONTENTS = {
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


def tensors(request: Any, accept: Accept) -> dict[str, Tensor]:
    """The request's tensors, from raw bytes or typed contents; `accept` sees them before a number is converted.

    Raises:
        BadInput: they break the protocol, or `accept` refuses.
    """
    check_count(len(request.inputs), "inputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadInput.about("raw_input_contents", len(raw), f"{len(request.inputs)}, one for each input")
    found: dict[str, Tensor] = {}
    for index, given in enumerate(request.inputs):
        field = f"inputs[{index}]"
        if given.name in found:
            raise BadInput.about(f"{field}.name", given.name, "each name once")
        shape = tuple(given.shape)
        size = element_count(shape, field) * datatype_named(given.datatype, field).item_bytes
        if not raw:
            _check_contents(given, field)
        elif given.contents.ListFields():
            raise BadInput.about(f"{field}.contents", "numbers", "none beside raw_input_contents")
        elif len(raw[index]) != size:
            raise BadInput.about(f"raw_input_contents[{index}]", f"{len(raw[index])} bytes", f"{size} bytes")
        found[given.name] = Tensor(given.datatype, shape, raw[index] if raw else b"")
    accept(found)
    if raw:
        return found
    return {
        given.name: _typed(given, found[given.name].shape, f"inputs[{index}]")
        for index, given in enumerate(request.inputs)
    }


def known_parameters(request: Any) -> dict[str, object]:
    """The parameters that say how urgent a request is, and who keeps to a version; None for one without a value."""
    names = (*PARAMETERS, STICKY_PARAMETER)
    given = {name: request.parameters[name] for name in names if name in request.parameters}
    return {name: getattr(value, value.WhichOneof("parameter_choice") or "", None) for name, value in given.items()}


def response(request: Any, answer: Answer, trace_id: str) -> Any:
    """The answer to a request as a message; how it was served and its trace are its parameters."""
    made = protocol.ModelInferResponse(
        model_name=request.model_name, model_version=answer.method.version, id=request.id
    )
    for name, value in {**answer.served(), "trace_id": trace_id}.items():
        _set_parameter(made.parameters[name], value)
    for name, tensor in answer.tensors().items():
        made.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        made.raw_output_contents.append(bytes(tensor.data))
    return made


def _check_contents(given: Any, field: str) -> None:
    name = CONTENTS.get(given.datatype)
    if name is None:
        raise BadInput(f"{field}: {given.datatype} has no typed contents; send raw_input_contents")
    for other, values in given.contents.ListFields():
        if other.name != name:
            allowed = f"{given.datatype} in {name}"
            raise BadInput.about(f"{field}.contents.{other.name}", f"{len(values)} numbers", allowed)


def _typed(given: Any, shape: tuple[int, ...], field: str) -> Tensor:
    name = CONTENTS[given.datatype]
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
