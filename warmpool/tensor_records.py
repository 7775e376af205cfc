"""Tensors inside the JSON of a message: what it says of each, and the numbers or bytes that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from warmpool.datatypes import datatype_named, element_count
from warmpool.errors import BadInput
from warmpool.tensors import Buffer, Tensor, named_non_finite, unpack

HEADER_LENGTH = "Inference-Header-Content-Length"
TENSORS_MAX = 256

Accept = Callable[[Mapping[str, Tensor]], object]


# Unknown fields are refused: silence would hide a caller's mistake.
class TensorRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tensor as JSON has it: its numbers in `data`, or `binary_data_size` of the bytes behind the JSON."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


def decoded(
    records: Sequence[TensorRecord], tail: memoryview | None, field: str, accept: Accept | None = None
) -> dict[str, Tensor]:
    """The tensors of a message by name; those that came as bytes are views of `tail`.

    Args:
        records: what the JSON says.
        tail: the bytes behind the JSON, None where no header announced any.
        field: what an error calls the list.
        accept: is shown the tensors before a number is converted, those in JSON without their data; not asked where
            all came as bytes.

    Raises:
        BadInput: anything in it breaks the protocol, or `accept` refuses.
    """
    check_count(len(records), field)
    tensors = _described(records, tail, field)
    in_json = [(index, record) for index, record in enumerate(records) if record.data is not msgspec.UNSET]
    if in_json and accept is not None:
        accept(tensors)
    for index, record in in_json:
        where = f"{field}[{index}] ({record.name})"
        tensors[record.name] = Tensor.of(record.datatype, record.data, record.shape, field=where)
    return tensors


def encoded(
    tensors: Mapping[str, Tensor], field: str, wants_binary: Callable[[str], bool]
) -> tuple[list[TensorRecord], list[Buffer]]:
    """The JSON forms of tensors, and the bytes that follow the JSON. Raises BadInput where bytes do not fit a shape."""
    records: list[TensorRecord] = []
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
            TensorRecord(name=name, datatype=kind.name, shape=tensor.shape, parameters=parameters, data=data)
        )
    return records, parts


def check_count(tensors: int, field: str) -> None:
    """Refuse more tensors than any message may have. Raises BadInput."""
    if tensors > TENSORS_MAX:
        raise BadInput(f"{field}: got {tensors} tensors; allowed: up to {TENSORS_MAX}")


def refuse_duplicates(names: Sequence[str], field: str) -> None:
    """Refuse a name that comes twice. Raises BadInput."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise BadInput.about(f"{field}[{index}].name", name, "each name once")
        seen.add(name)


def _described(records: Sequence[TensorRecord], tail: memoryview | None, field: str) -> dict[str, Tensor]:
    """The tensors without the numbers of those in JSON."""
    tensors: dict[str, Tensor] = {}
    offset = 0
    for index, record in enumerate(records):
        where = f"{field}[{index}] ({record.name})"
        size = record.parameters.get("binary_data_size")
        if (size is None) == (record.data is msgspec.UNSET):
            raise BadInput(f"{where}: has both or neither of data and parameters.binary_data_size; give one of them")
        if size is None:
            tensors[record.name] = Tensor(record.datatype, record.shape, b"")
        else:
            tensors[record.name] = _from_bytes(record, size, tail, offset, where)
            offset += size
    if len(tensors) != len(records):
        refuse_duplicates([record.name for record in records], field)
    if tail is not None and offset != len(tail):
        raise BadInput(f"body: got {len(tail)} bytes after the JSON; allowed: {offset}, the sum of binary_data_size")
    return tensors


def _from_bytes(record: TensorRecord, size: Any, tail: memoryview | None, offset: int, where: str) -> Tensor:
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
