"""What is wrong with a manifest that could be read: whatever the front could not compute with, it is not to begin with.

It is found when the model is read, not in a request, and it is that model's problem alone. All sizes are computed with
Python's own ints: nothing wraps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from warmpool.arena import dtype_of, regions
from warmpool.datatypes import ELEMENTS_MAX, OF_DTYPE, element_count
from warmpool.dtypes import DTYPES, value_problem
from warmpool.errors import BadInput
from warmpool.manifest import ALIGN_BYTES, DimSpec, Manifest, MethodSpec, TensorSpec, WeightsSpec
from warmpool.symbolic import shape_of

ARENA_BYTES_MAX = 1 << 36  # as address space, of which a batch touches what it needs: far more than any batch has
WEIGHT_BYTES_MAX = 1 << 62


def problem_of(manifest: Manifest) -> str | None:
    """The first thing that is wrong, None for nothing.

    Raises:
        ValueError, ArithmeticError: the expression of a shape cannot be evaluated.
    """
    if manifest.default_method not in manifest.methods:
        return f"its default method {manifest.default_method!r} is not one of {', '.join(manifest.methods)}"
    dims = {dim.name: dim for dim in manifest.dims}
    return next(
        itertools.chain(
            _dims_problems(manifest.dims),
            *(_method_problems(name, spec, dims) for name, spec in manifest.methods.items()),
            _weights_problems(manifest.weights),
        ),
        None,
    )


def arena_bytes(spec: MethodSpec, dims: Mapping[str, DimSpec]) -> int:
    """Shared memory for the inputs and outputs of a method's largest bucket.

    An output may be largest where a dimension is smallest: every combination of smallest and largest sizes counts.
    """
    ends = [0]
    for sizes in _extremes(dims):
        shapes = ((tensor.dtype, shape_of(tensor.shape, sizes)) for tensor in (*spec.inputs, *spec.outputs))
        ends += [region.end for region in regions(shapes)[-1:]]
    return max(ends)


def _extremes(dims: Mapping[str, DimSpec]) -> Iterator[dict[str, int]]:
    for sizes in itertools.product(*({dim.sizes[0], dim.sizes[-1]} for dim in dims.values())):
        yield dict(zip(dims, sizes, strict=True))


def _dims_problems(dims: Sequence[DimSpec]) -> Iterator[str]:
    yield from _twice("dimension", [dim.name for dim in dims])
    if sum(dim.batch for dim in dims) > 1:
        yield "it has more than one batch dimension"
    for dim in dims:
        ascending = all(low < high for low, high in itertools.pairwise((0, *dim.sizes, ELEMENTS_MAX + 1)))
        if not dim.sizes or not ascending:
            yield f"its dimension {dim.name!r} has no sizes that ascend from 1 to {ELEMENTS_MAX} at most"
        if not 1 <= dim.max <= ELEMENTS_MAX:
            yield f"its dimension {dim.name!r} has the maximum {dim.max}, allowed: 1 to {ELEMENTS_MAX}"


def _method_problems(name: str, spec: MethodSpec, dims: Mapping[str, DimSpec]) -> Iterator[str]:
    for tensors in (spec.inputs, spec.outputs):
        yield from (f"{name}: {problem}" for problem in _twice("tensor", [tensor.name for tensor in tensors]))
        yield from (f"{name}: {tensor.name!r} {problem}" for tensor in tensors for problem in _tensor_problems(tensor))
    used = {axis for tensor in spec.inputs for axis in tensor.shape if isinstance(axis, str)}
    if unknown := used - dims.keys():
        yield f"{name}: its inputs have the dimension {min(unknown)!r}, not one of {', '.join(dims)}"
    yield from (f"{name}: {problem}" for problem in _mask_problems(spec, dims))
    used_dims = {axis: dims[axis] for axis in used}
    for sizes in _extremes(used_dims):
        for tensor in (*spec.inputs, *spec.outputs):
            try:
                element_count(shape_of(tensor.shape, sizes), f"{name}: {tensor.name!r}")
            except BadInput as problem:
                yield str(problem)
    if (size := arena_bytes(spec, used_dims)) > ARENA_BYTES_MAX:
        yield f"{name}: its largest bucket takes {size} bytes, allowed: {ARENA_BYTES_MAX}"


def _tensor_problems(tensor: TensorSpec) -> Iterator[str]:
    if tensor.dtype not in OF_DTYPE:
        yield f"has the dtype {tensor.dtype!r}, not one of {', '.join(OF_DTYPE)}"
    for field in ("pad", "low", "high"):
        value = getattr(tensor, field)
        if value is not None and tensor.dtype in DTYPES and (problem := value_problem(tensor.dtype, value)):
            yield f"has the {field} {problem}"


def _mask_problems(spec: MethodSpec, dims: Mapping[str, DimSpec]) -> Iterator[str]:
    """Why a length mask could not be made where a caller leaves it out."""
    said = {axis for tensor in spec.inputs if not tensor.may_be_left_out for axis in tensor.shape}
    batch = [name for name, dim in dims.items() if dim.batch and name in said]
    shapes = [(*batch, name) for name in dims if name in said and name not in batch]
    for tensor in (tensor for tensor in spec.inputs if tensor.may_be_left_out):
        if tensor.shape not in shapes:
            allowed = ", ".join(str(list(shape)) for shape in shapes) or "none"
            yield f"{tensor.name!r} is a length mask of the shape {list(tensor.shape)}, allowed: {allowed}"
        if (tensor.low, tensor.high) not in {(0, 1), (None, None)}:
            yield f"{tensor.name!r} is a length mask from {tensor.low} to {tensor.high}, allowed: 0 to 1"
        if tensor.pad != 0:
            yield f"{tensor.name!r} is a length mask with the pad {tensor.pad}, allowed: 0"


def _weights_problems(weights: WeightsSpec) -> Iterator[str]:
    for weight in weights.tensors:
        where = f"its weight {weight.name!r}"
        if weight.dtype not in OF_DTYPE:
            yield f"{where} has the dtype {weight.dtype!r}, not one of {', '.join(OF_DTYPE)}"
            return
        item_bytes = dtype_of(weight.dtype).itemsize
        # Without its zeros, since numpy cannot address the shape (0, 2**63) either.
        extent = math.prod(size or 1 for size in weight.shape) * item_bytes
        if min(weight.shape, default=0) < 0 or extent > WEIGHT_BYTES_MAX:
            yield f"{where} has the shape {list(weight.shape)}, allowed: sizes from 0, {WEIGHT_BYTES_MAX} bytes in all"
        end = weight.offset + math.prod(weight.shape) * item_bytes
        if weight.offset < 0 or weight.offset % ALIGN_BYTES or end > weights.size_bytes:
            allowed = f"from a multiple of {ALIGN_BYTES} to {weights.size_bytes} at most"
            yield f"{where} lies from {weight.offset} to {end}, allowed: {allowed}"


def _twice(what: str, names: Sequence[str]) -> Iterator[str]:
    yield from (f"it has the {what} {name!r} more than once" for name in dict.fromkeys(names) if names.count(name) > 1)
