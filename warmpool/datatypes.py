"""The tensor datatypes of the Open Inference Protocol, and the bounds on shapes that any message keeps.

One table translates between the three worlds that a tensor lives in: V2 names on the wire, numpy names in manifests
and in the front, and `struct` codes in a function, which has no numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import msgspec

from warmpool.errors import BadInput

RANK_MAX = 8
ELEMENTS_MAX = 2**31 - 1


class Datatype(msgspec.Struct, frozen=True):
    """One datatype: its V2 name, numpy's name for it, and how one item is stored (little-endian).

    `code` is the format of one stored item for `struct` and `memoryview`. BF16 has no such code: its is that of 16
    bits.
    """

    name: str
    dtype: str
    item_bytes: int
    code: str
    kind: Literal["bool", "int", "float"]


BF16 = Datatype("BF16", "bfloat16", 2, "H", "float")

DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", "bool", 1, "?", "bool"),
        Datatype("INT8", "int8", 1, "b", "int"),
        Datatype("INT16", "int16", 2, "h", "int"),
        Datatype("INT32", "int32", 4, "i", "int"),
        Datatype("INT64", "int64", 8, "q", "int"),
        Datatype("UINT8", "uint8", 1, "B", "int"),
        Datatype("UINT16", "uint16", 2, "H", "int"),
        Datatype("UINT32", "uint32", 4, "I", "int"),
        Datatype("UINT64", "uint64", 8, "Q", "int"),
        Datatype("FP16", "float16", 2, "e", "float"),
        BF16,
        Datatype("FP32", "float32", 4, "f", "float"),
        Datatype("FP64", "float64", 8, "d", "float"),
    )
}

OF_DTYPE: dict[str, Datatype] = {datatype.dtype: datatype for datatype in DATATYPES.values()}


def datatype_named(name: str, field: str) -> Datatype:
    """Return the datatype with this V2 name.

    Raises:
        BadInput: There is none, or it is BYTES, which no program of the service takes.
    """
    datatype = DATATYPES.get(name)
    if datatype is None:
        note = " (BYTES is not served: send numbers)" if name == "BYTES" else ""
        raise BadInput.about(f"{field}.datatype", name, ", ".join(DATATYPES) + note)
    return datatype


def element_count(shape: Sequence[int], field: str) -> int:
    """Return the number of elements of `shape`, having checked rank, signs and size.

    Raises:
        BadInput: The shape is longer, has a negative dimension, or is larger than any tensor of the wire may be.
    """
    if len(shape) > RANK_MAX:
        raise BadInput.about(f"{field}.shape", list(shape), f"up to {RANK_MAX} dimensions")
    count = prod(shape)
    if shape and min(shape) < 0:
        raise BadInput.about(f"{field}.shape", list(shape), "dimensions of 0 or more")
    # The extent ignores zeros, since numpy cannot address the shape (0, 2**62, 2**62) either.
    extent = count or prod(dim or 1 for dim in shape)
    if extent > ELEMENTS_MAX:
        raise BadInput.about(f"{field}.shape", list(shape), f"up to {ELEMENTS_MAX} elements")
    return count
