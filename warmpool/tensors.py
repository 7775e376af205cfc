"""A tensor without numpy: Python numbers on one side, the bytes of the wire on the other.

Functions hold tensors and must not import numpy, so `struct` and `memoryview` do the work. Both run in C over a whole
list: 100,000 floats take about 2 ms each way.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from warmpool.datatypes import BF16, DATATYPES, RANK_MAX, Datatype, datatype_named, element_count
from warmpool.errors import BadInput, shown

if sys.byteorder != "little":
    raise ImportError("warmpool needs a little-endian machine: tensors go to the wire as they lie in memory")

Buffer = bytes | bytearray | memoryview

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

BFLOAT16_INFINITY_BITS = 0x7F80

_PYTHON_TYPES: dict[str, frozenset[type]] = {
    "bool": frozenset((bool,)),
    "int": frozenset((int,)),
    "float": frozenset((float, int)),
}
_ALLOWED = {
    "bool": "true or false",
    "int": "an integer in the range of {name}",
    "float": 'a number in the range of {name}, or "NaN", "Infinity", "-Infinity"',
}


class Tensor(msgspec.Struct, frozen=True):
    """One tensor: a V2 datatype name, a shape, and its items in C order, little-endian.

    The constructor takes bytes as they are; `Tensor.of` makes them from Python numbers. Encoding a message checks
    that they fit the shape.
    """

    datatype: str
    shape: tuple[int, ...]
    data: Buffer

    @classmethod
    def of(cls, datatype: str, values: object, shape: Sequence[int] | None = None, *, field: str = "values") -> Tensor:
        """Make a tensor from a number or from flat or nested lists.

        Args:
            datatype: A V2 name, `"INT32"`.
            values: Numbers or booleans; for floats also "NaN", "Infinity" and "-Infinity".
            shape: The shape of a flat list; by default the nesting is the shape.
            field: What an error calls the tensor.

        Raises:
            BadInput: Unknown datatype, ragged lists, an item of another type or out of range.
        """
        kind = datatype_named(datatype, field)
        dims = nesting(values) if shape is None else tuple(shape)
        count = element_count(dims, field)
        nested = (count,) if shape is not None and _is_flat(values) else dims
        return cls(datatype, dims, pack(kind, _flattened(values, nested, field), field))

    def tolist(self) -> Any:
        """Return the items as lists nested as the shape says; one number for the shape ()."""
        return unpack(DATATYPES[self.datatype], self.data, self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the items in bytes."""
        return self.data.nbytes if isinstance(self.data, memoryview) else len(self.data)


def pack(datatype: Datatype, values: Sequence[Any], field: str) -> bytes:
    """Return the stored form of Python numbers.

    Floats are rounded to nearest even; BF16 by way of float32.

    Raises:
        BadInput: An item has another type or does not fit; the message names the first such item.
    """
    kinds = set(map(type, values))
    if datatype.kind == "float" and str in kinds:
        values = [NON_FINITE.get(value, value) if type(value) is str else value for value in values]
        kinds = set(map(type, values))
    if not kinds <= _PYTHON_TYPES[datatype.kind]:
        raise _first_misfit(datatype, values, field)
    try:
        return _packed(datatype, values)
    except (struct.error, OverflowError):
        raise _first_misfit(datatype, values, field) from None


def unpack(datatype: Datatype, data: Buffer, shape: Sequence[int]) -> Any:
    """Return stored items as lists nested as `shape` says, or one number for the shape ()."""
    if 0 in shape:
        return _empty(shape)
    view = memoryview(data).cast("B")
    if datatype is BF16:
        return memoryview(_widened(view)).cast("f", tuple(shape)).tolist()
    return view.cast(datatype.code, tuple(shape)).tolist()  # type: ignore[call-overload]


def nesting(values: object) -> tuple[int, ...]:
    """Return the shape that nested lists suggest, looking at first items only: at next to no cost, whatever came."""
    shape: list[int] = []
    # One dimension too many is enough for the refusal that follows.
    while isinstance(values, list | tuple) and len(shape) <= RANK_MAX:
        shape.append(len(values))
        if not values:
            break
        values = values[0]
    return tuple(shape)


def named_non_finite(values: list[float]) -> list[float] | list[float | str]:
    """Return floats with NaN and infinities as the strings that stand for them in JSON."""
    # A sum is finite only if every item is: one pass in C clears almost every tensor.
    if math.isfinite(sum(values)):
        return values
    return [value if math.isfinite(value) else _name_of(value) for value in values]


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _is_flat(values: object) -> bool:
    return isinstance(values, list | tuple) and not (values and isinstance(values[0], list | tuple))


def _flattened(values: object, shape: Sequence[int], field: str) -> Sequence[Any]:
    """Return the items of `values`, a scalar or lists nested exactly as `shape` says, in C order."""
    level: Any = (values,)
    for axis, dim in enumerate(shape):
        if not set(map(type, level)) <= {list, tuple} or not set(map(len, level)) <= {dim}:
            odd = next(item for item in level if not isinstance(item, list | tuple) or len(item) != dim)
            came = f"a list of {len(odd)}" if isinstance(odd, list | tuple) else shown(odd)
            raise BadInput(f"{field} (axis {axis}): got {came}; allowed: a list of {dim}")
        level = level[0] if axis == 0 else list(chain.from_iterable(level))
    items: Sequence[Any] = level
    return items


def _empty(shape: Sequence[int]) -> list[Any]:
    return [_empty(shape[1:]) for _ in range(shape[0])]


def _first_misfit(datatype: Datatype, values: Sequence[Any], field: str) -> BadInput:
    """Halve what the first misfit is in, so that it is found in C: a loop over millions would keep everyone waiting."""
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        start, end = (middle, end) if _fit(datatype, values[start:middle]) else (start, middle)
    allowed = _ALLOWED[datatype.kind].format(name=datatype.name)
    return BadInput.about(f"{field} (item {start})", values[start], allowed)


def _fit(datatype: Datatype, values: Sequence[Any]) -> bool:
    if not set(map(type, values)) <= _PYTHON_TYPES[datatype.kind]:
        return False
    try:
        _packed(datatype, values)
    except (struct.error, OverflowError):
        return False
    return True


def _packed(datatype: Datatype, values: Sequence[Any]) -> bytes:
    if datatype is BF16:
        return _pack_bfloat16(values)
    return struct.pack(f"<{len(values)}{datatype.code}", *values)


def _pack_bfloat16(values: Sequence[float]) -> bytes:
    """Round float32 bits to their upper half, to nearest even; NaNs stay NaNs.

    All words are one long integer, so that the arithmetic on them runs in C. No word carries into the next: only NaNs
    lie that high, and they are replaced by one that does not.
    """
    count = len(values)
    packed = struct.pack(f"<{count}f", *values)
    if math.isnan(sum(values)):
        packed = struct.pack(f"<{count}f", *(math.nan if value != value else value for value in values))  # noqa: PLR0124
    ones = int.from_bytes(b"\1\0\0\0" * count, "little")
    words = int.from_bytes(packed, "little")
    rounded = (words + (words >> 16 & ones) + 0x7FFF * ones).to_bytes(4 * count, "little")
    upper = bytearray(2 * count)
    upper[0::2], upper[1::2] = rounded[2::4], rounded[3::4]
    if _infinities(memoryview(upper).cast("H")) > sum(map(values.count, (math.inf, -math.inf))):
        raise OverflowError
    return bytes(upper)


def _infinities(words: memoryview) -> int:
    found = words.tolist()
    return found.count(BFLOAT16_INFINITY_BITS) + found.count(BFLOAT16_INFINITY_BITS | 0x8000)


def _widened(view: memoryview) -> bytearray:
    """Turn BF16 bytes into float32 bytes: the same upper half, zeros below."""
    wide = bytearray(2 * len(view))
    wide[2::4] = view[0::2]
    wide[3::4] = view[1::2]
    return wide
