"""The request form of TF Serving and Vertex AI: {"instances": [row, ...]} or {"inputs": {name: values}}, JSON only.

It carries no datatypes: values are read as what the manifest says. Rows answer as {"predictions": [...]}, columns as
{"outputs": {...}}. TF Serving's `signature_name` names the method where the URL does not; Vertex AI's `parameters` may
say how urgent it is, and nothing else, since what a method takes are its inputs.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from warmpool.catalog import ServedMethod
from warmpool.dataplane import Answer
from warmpool.datatypes import OF_DTYPE
from warmpool.errors import BadInput
from warmpool.tensors import Tensor, named_non_finite, nesting
from warmpool.urgency import PARAMETERS
from warmpool.validation import sizes_of
from warmpool.version_routing import STICKY_PARAMETER

Form = Literal["instances", "inputs"]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request as its JSON has it, of one form or the other."""

    instances: list[Any] | msgspec.UnsetType = msgspec.UNSET
    inputs: Any = msgspec.UNSET
    signature_name: str | None = None
    parameters: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(Body)


def parse(body: bytes) -> Body:
    """The request as it is. Raises BadInput for anything that is neither form."""
    try:
        parsed = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(f"body: {error}; allowed: JSON with instances or inputs") from None
    if (parsed.instances is msgspec.UNSET) == (parsed.inputs is msgspec.UNSET):
        raise BadInput("body: give either instances (a list of rows) or inputs (values by input name)")
    allowed = (*PARAMETERS, STICKY_PARAMETER)
    if unknown := [name for name in parsed.parameters or () if name not in allowed]:
        raise BadInput.about("parameters", unknown[0], f"{', '.join(allowed)}; what a method takes are its inputs")
    return parsed


def named(path: str, body: Body) -> str:
    """NAME or NAME:METHOD that a request means: what its path says, with the method of its body if it has one.

    Raises:
        BadInput: path and body name different methods.
    """
    name, _, method = path.partition(":")
    if body.signature_name and method and body.signature_name != method:
        raise BadInput.about("signature_name", body.signature_name, f"{method}, which the URL names, or none")
    return f"{name}:{body.signature_name}" if body.signature_name else path


def decode(method: ServedMethod, body: Body) -> tuple[Form, dict[str, Tensor]]:
    """The request's form and tensors. Raises BadInput where its values are not those of the method's inputs."""
    if body.instances is not msgspec.UNSET:
        columns = _columns(method, body.instances)
        return "instances", _tensors(method, columns, "instances") if body.instances else _no_rows(method)
    inputs = body.inputs
    if not isinstance(inputs, dict):
        if len(method.spec.required) != 1:
            names = ", ".join(spec.name for spec in method.spec.inputs)
            raise BadInput.about("inputs", inputs, f"an object with {names}")
        inputs = {method.spec.required[0]: inputs}
    return "inputs", _tensors(method, inputs, "inputs")


def encode(form: Form, answer: Answer) -> dict[str, Any]:
    """The answer in the form that the request had."""
    columns = {name: _listed(tensor) for name, tensor in answer.tensors().items()}
    if form == "inputs":
        return {"outputs": columns}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def _columns(method: ServedMethod, rows: list[Any]) -> dict[str, list[Any]]:
    """Rows (objects, or bare values where one input has to be given) as one list an input.

    What may be left out is given in every row or in none.
    """
    if method.batch is None or not method.mergeable:
        raise BadInput(f"instances: {method.model}:{method.name} has no batch dimension; send inputs instead")
    required = method.spec.required
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    names = [spec.name for spec in method.spec.inputs if spec.name in required or spec.name in first]
    rows_max = method.dims[method.batch].max
    if len(rows) > rows_max:
        raise BadInput.about("instances", f"{len(rows)} rows", f"up to {rows_max}")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for index, row in enumerate(rows):
        if not isinstance(row, dict) and len(required) == 1:
            row = {required[0]: row}  # noqa: PLW2901
        if not isinstance(row, dict) or set(row) != set(names):
            raise BadInput.about(f"instances[{index}]", row, f"an object with {', '.join(names)}")
        for name in names:
            columns[name].append(row[name])
    return columns


def _no_rows(method: ServedMethod) -> dict[str, Tensor]:
    """What an empty list of rows means: its nesting cannot say the other sizes, and no answer depends on them."""
    return {
        spec.name: Tensor(
            OF_DTYPE[spec.dtype].name, (0, *(axis if isinstance(axis, int) else 1 for axis in spec.shape[1:])), b""
        )
        for spec in method.spec.inputs
    }


def _tensors(method: ServedMethod, values: dict[str, Any], field: str) -> dict[str, Tensor]:
    datatypes = {spec.name: OF_DTYPE[spec.dtype].name for spec in method.spec.inputs}
    if unknown := [name for name in values if name not in datatypes]:
        raise BadInput.about(field, unknown[0], ", ".join(datatypes))
    sizes_of(method, {name: Tensor(datatypes[name], nesting(given), b"") for name, given in values.items()})
    return {name: Tensor.of(datatypes[name], given, field=f"{field}.{name}") for name, given in values.items()}


def _listed(tensor: Tensor) -> Any:
    """Nested lists with NaN and infinities as the strings that stand for them."""
    return _named(tensor.tolist())


def _named(values: Any) -> Any:
    if isinstance(values, list):
        if values and isinstance(values[0], float):
            return named_non_finite(values)
        return [_named(value) for value in values] if values and isinstance(values[0], list) else values
    return named_non_finite([values])[0] if isinstance(values, float) else values
