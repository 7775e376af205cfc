"""The dtypes of inputs and outputs, and which numbers each of them holds.

Without numpy: a declaration can be checked anywhere.
"""

from __future__ import annotations

import math

Scalar = bool | int | float

INT_RANGES: dict[str, tuple[int, int]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
}
FLOAT_MAX: dict[str, float] = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep+127"),
    "float32": float.fromhex("0x1.fffffep+127"),
}
DTYPES = ("bool", *INT_RANGES, *FLOAT_MAX)
_NARROWER = {"int64": "int32", "uint64": "uint32", "float64": "float32", "int": "int32", "float": "float32"}


def dtype_problem(dtype: object) -> str | None:
    """What is wrong with a dtype's name, and what to use instead; None where nothing is."""
    if dtype in DTYPES:
        return None
    if isinstance(dtype, str) and dtype in _NARROWER:
        return f"dtype {dtype!r} is not allowed: JAX computes in 32 bits by default; use {_NARROWER[dtype]!r}"
    return f"dtype {dtype!r} is not allowed; use one of {', '.join(DTYPES)}"


def value_problem(dtype: str, value: object) -> str | None:
    """Why a tensor of this dtype cannot hold a value, and what it can; None where it can."""
    if dtype == "bool":
        return None if isinstance(value, bool) else f"{value!r} is not representable in bool; use True or False"
    if dtype in INT_RANGES:
        low, high = INT_RANGES[dtype]
        fits = is_int(value) and low <= value <= high  # type: ignore[operator]
        return None if fits else f"{value!r} is not representable in {dtype}; use an int from {low} to {high}"
    largest = FLOAT_MAX[dtype]
    fits = is_number(value) and abs(value) <= largest  # type: ignore[arg-type]
    return None if fits else f"{value!r} is not representable in {dtype}; use a finite number up to {largest:g} in size"


def is_int(value: object) -> bool:
    """Whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a finite int or float and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
