"""What a traced function must not contain: calls back into Python, and arrays it closed over.

A callback cannot be exported, and an array that the function closed over becomes a constant of the program: a new
checkpoint would compile everything anew. Both are found in the jaxpr, where constants still have their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from warmpool.model import misdeclared

CONSTANT_BYTES_MAX = 16 << 10


def check_jaxpr(closed: Any, where: dict[str, str]) -> None:
    """Checks a `jax.extend.core.ClosedJaxpr` and everything nested in it.

    Raises:
        DeclarationError: It calls back into Python, or holds a constant of more than `CONSTANT_BYTES_MAX`.
    """
    for jaxpr, constants in _nested(closed):
        for constant in constants:
            _check_constant(constant, where)
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if "callback" in name or name == "debug_print":
                raise misdeclared(f"it calls back into Python ({name}), which no program can; remove the call", **where)


def _check_constant(constant: Any, where: dict[str, str]) -> None:
    size_bytes = getattr(constant, "nbytes", 0)
    if size_bytes > CONSTANT_BYTES_MAX:
        shape, dtype = np.shape(constant), constant.dtype
        raise misdeclared(
            f"it closes over an array of {dtype} with shape {shape}; at most {CONSTANT_BYTES_MAX} bytes may be: "
            "move the array into params, so that new weights compile nothing",
            **where,
        )


def _nested(closed: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A closed jaxpr's jaxpr and constants, and those of every one in its equations' parameters, each once."""
    seen: set[int] = set()
    waiting = [closed]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list | tuple):
            waiting.extend(item)
        elif id(item) not in seen and (hasattr(item, "eqns") or hasattr(item, "jaxpr")):
            seen.add(id(item))
            jaxpr = getattr(item, "jaxpr", item)
            yield jaxpr, list(getattr(item, "consts", ()))
            waiting.extend(value for equation in jaxpr.eqns for value in equation.params.values())
