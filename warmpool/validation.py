"""Requests against the manifest: what a compiled executable would not notice has to be refused before it.

A compiled call wraps integers, clamps indices and takes any dtype of the right size, without a word. So every input's
name, dtype, rank, sizes and values are checked here, and a refusal names the field, what came and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool.arena import dtype_of
from warmpool.catalog import ServedMethod
from warmpool.datatypes import DATATYPES, OF_DTYPE
from warmpool.errors import BadInput
from warmpool.manifest import DimSpec, TensorSpec
from warmpool.symbolic import shape_of
from warmpool.tensors import Tensor

Array = NDArray[Any]


def validated(method: ServedMethod, inputs: Mapping[str, Tensor]) -> tuple[list[Array], dict[str, int]]:
    """The inputs as arrays in the manifest's order, and the size of every named dimension.

    The arrays are views of the request's body; a length mask that was left out is ones, of the shape that the others
    have, and takes no memory.

    Raises:
        BadInput: an input is missing, unknown, or not as the manifest says.
    """
    sizes = sizes_of(method, inputs)
    arrays = [
        _array(f"inputs.{spec.name}", spec, inputs[spec.name]) if spec.name in inputs else _ones(spec, sizes)
        for spec in method.spec.inputs
    ]
    return arrays, sizes


def sizes_of(method: ServedMethod, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The size of every named dimension, from the inputs' names, datatypes and shapes alone.

    A protocol asks this before it converts a request's numbers: what is refused for its shape is refused at once,
    however many numbers came.

    Raises:
        BadInput: an input is missing, unknown, or of another datatype or shape than the manifest says.
    """
    _check_names(method, inputs)
    sizes: dict[str, int] = {}
    for spec in method.spec.inputs:
        if (tensor := inputs.get(spec.name)) is None:
            continue  # a length mask: other inputs have its dimensions
        field = f"inputs.{spec.name}"
        _check_datatype(field, spec, tensor)
        _check_shape(field, spec, tensor.shape, method.dims, sizes)
    return {name: sizes[name] for name in method.dims}


def chosen_outputs(method: ServedMethod, wanted: Iterable[str]) -> list[int]:
    """Indices of the wanted outputs; all of them if none is named. Raises BadInput for one that does not exist."""
    names = [spec.name for spec in method.spec.outputs]
    chosen: list[int] = []
    for name in wanted:
        if name not in names:
            raise BadInput.about("outputs", name, ", ".join(names))
        chosen.append(names.index(name))
    return chosen or list(range(len(names)))


def _check_names(method: ServedMethod, inputs: Mapping[str, Tensor]) -> None:
    names = [spec.name for spec in method.spec.inputs]
    required = method.spec.required
    if missing := [name for name in required if name not in inputs]:
        optional = ", ".join(name for name in names if name not in required)
        rest = f" ({optional} may be left out)" if optional else ""
        takes = f"{method.model}:{method.name} takes {', '.join(names)}{rest}"
        raise BadInput(f"inputs: {', '.join(missing)} missing; {takes}")
    if unknown := [name for name in inputs if name not in names]:
        raise BadInput.about("inputs", unknown[0], f"{', '.join(names)} of {method.model}:{method.name}")


def _check_datatype(field: str, spec: TensorSpec, tensor: Tensor) -> None:
    datatype = OF_DTYPE[spec.dtype].name
    if tensor.datatype != datatype:
        raise BadInput.about(f"{field}.datatype", tensor.datatype, datatype)


def _check_shape(
    field: str, spec: TensorSpec, shape: tuple[int, ...], dims: Mapping[str, DimSpec], sizes: dict[str, int]
) -> None:
    if len(shape) != len(spec.shape):
        raise BadInput.about(f"{field}.shape", list(shape), f"{len(spec.shape)} dimensions, {_declared(spec)}")
    for index, (axis, size) in enumerate(zip(spec.shape, shape, strict=True)):
        if isinstance(axis, int):
            if size != axis:
                where = f"{field}.shape[{index}]"
                raise BadInput.about(where, size, f"{axis}; the shape is {_declared(spec)}")
            continue
        dim = dims[axis]
        smallest = 0 if dim.batch else 1
        if not smallest <= size <= dim.max:
            where = f"{field}.shape[{index}] (dimension {axis!r})"
            raise BadInput.about(where, size, f"{smallest} to {dim.max}")
        if sizes.setdefault(axis, size) != size:
            where = f"{field}.shape[{index}] (dimension {axis!r})"
            raise BadInput.about(where, size, f"{sizes[axis]}, as in the other inputs")


def _declared(spec: TensorSpec) -> str:
    return "[" + ", ".join(str(axis) for axis in spec.shape) + "]"


def _ones(spec: TensorSpec, sizes: Mapping[str, int]) -> Array:
    return np.broadcast_to(np.ones((), dtype_of(spec.dtype)), shape_of(spec.shape, sizes))


def _array(field: str, spec: TensorSpec, tensor: Tensor) -> Array:
    array = np.frombuffer(tensor.data, dtype_of(DATATYPES[tensor.datatype].dtype)).reshape(tensor.shape)
    if not array.size:
        return array
    if spec.dtype == "bool":
        _check_values(field, array.view(np.uint8), 0, 1)
    elif spec.low is not None or spec.high is not None:
        _check_values(field, array, spec.low, spec.high)
    return array


def _check_values(field: str, array: Array, low: Any, high: Any) -> None:
    """NaN is inside no bounds, so the comparisons ask what holds, not what fails.

    Bounds are rounded to the dtype first, as a caller's values are: bfloat16 would be compared in double precision.
    """
    bounds = [(np.greater_equal, low), (np.less_equal, high)]
    held = [compare(array, _rounded(bound, array.dtype)) for compare, bound in bounds if bound is not None]
    if any(np.count_nonzero(one) < array.size for one in held):
        index = tuple(int(axis) for axis in np.argwhere(~np.logical_and.reduce(held))[0])
        where = f"{field}[{', '.join(map(str, index))}]" if index else field
        allowed = f"{'any' if low is None else low} to {'any' if high is None else high}"
        raise BadInput.about(where, array[index].item(), allowed)


@lru_cache(maxsize=1024)
def _rounded(bound: float, dtype: np.dtype[Any]) -> Array:
    return np.array(bound, dtype)
