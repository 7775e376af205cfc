"""A method as its proof sees it: which exact shapes are proved, with which values, and how a batch of them is padded.

Everything here is a pure function of the manifest, so that the processes that run references and trials agree on every
number without sending one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
from numpy.typing import NDArray

from warmpool.dtypes import FLOAT_MAX, INT_RANGES
from warmpool.manifest import DimSpec, Manifest, TensorSpec, bucket_name
from warmpool.symbolic import shape_of

Sizes = Mapping[str, int]
Tensors = list[NDArray[Any]]  # in the order of the method's inputs or outputs
Fill = Literal["written", "garbage", "other garbage", "not finite"]

VARIANTS = 3  # value sets a point; rows beyond repeat them

_UNBOUNDED_SPAN = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch, or all of a method without a batch dimension: an exact shape and one of its value sets."""

    point: dict[str, int]
    variant: int


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a bucket: the valid rows, and what their padding and the rows after them hold.

    Attributes:
        rows: The valid rows.
        fill: "written" is what an instance writes. Garbage is legal content wherever the method has to ignore it.
            "not finite" is what an instance writes, beside rows of a caller who sent NaN and infinities.
    """

    rows: tuple[Row, ...]
    fill: Fill


class Subject:
    """One method of a manifest."""

    def __init__(self, manifest: Manifest, method: str) -> None:
        self.model = manifest.model
        self.method = method
        self.spec = manifest.methods[method]
        self.tolerance = manifest.tolerance
        used = {axis for tensor in self.spec.inputs for axis in tensor.shape}
        self.dims: dict[str, DimSpec] = {dim.name: dim for dim in manifest.dims if dim.name in used}
        self.batch = next((dim.name for dim in self.dims.values() if dim.batch), None)

    def cases(self, bucket: Sizes, points: Sequence[dict[str, int]]) -> list[Case]:
        """What is run to prove a bucket: every point with all rows valid, and again with garbage and one row fewer.

        Where callers may send what is not finite, also once beside a row of it.
        """
        groups = [[point] for point in points] if self._shares_shapes() else [list(points)]
        count = bucket[self.batch] if self.batch else 1
        fills: list[tuple[Fill, int]] = [("written", count), ("garbage", max(1, count - 1))]
        cases = [
            Case(tuple(_rows(group, start, valid)), fill)
            for group in groups
            for fill, valid in fills
            for start in range(0, len(group), valid)
        ]
        if count > 1 and any(unbounded_values(tensor) and not self.is_shared(tensor) for tensor in self.spec.inputs):
            cases += [Case(tuple(_rows(group, 0, count - 1)), "not finite") for group in groups]
        return cases

    def _shares_shapes(self) -> bool:
        """Whether an input that all rows share has a size that would differ between rows."""
        return any(
            self.is_shared(tensor) and any(isinstance(axis, str) for axis in tensor.shape)
            for tensor in self.spec.inputs
        )

    def is_shared(self, tensor: TensorSpec) -> bool:
        """Whether all rows of a batch share this input."""
        return self.batch is not None and tensor.shape[:1] != (self.batch,)

    def exact(self, row: Row) -> Tensors:
        """The inputs of one row at its exact shape; batch size 1."""
        return [self._values(tensor, row) for tensor in self.spec.inputs]

    def padded(self, bucket: Sizes, case: Case) -> Tensors:
        """The inputs of a case at the bucket's shape, with dtype and order of the method's."""
        return [self._padded(tensor, bucket, case) for tensor in self.spec.inputs]

    def _padded(self, tensor: TensorSpec, bucket: Sizes, case: Case) -> NDArray[Any]:
        shape = shape_of(tensor.shape, bucket)
        rows = (
            [(Ellipsis, case.rows[0])] if self.batch is None or self.is_shared(tensor) else list(enumerate(case.rows))
        )
        written = np.full(shape, tensor.pad or 0, tensor.dtype)
        generator = generator_of(case.fill, self.method, tensor.name, bucket_name(dict(bucket)))
        if case.fill == "written":
            array = written
        elif case.fill == "not finite":
            array = written
            if unbounded_values(tensor) and not self.is_shared(tensor):
                others = array[len(case.rows) :]
                others[...] = not_finite(tensor, others.shape, generator)
        else:
            array = garbage(tensor, shape, generator)
            if tensor.pad is not None:
                for index, _ in rows:
                    array[index] = written[index]
        for index, row in rows:
            values = self._values(tensor, row)
            values = values if index is Ellipsis else values[0]
            array[(index, *(slice(size) for size in values.shape))] = values
        return array

    def cut(self, outputs: Sequence[NDArray[Any]], index: int, row: Row) -> Tensors:
        """The valid part of every output for one row, with batch size 1: what its exact shape would have returned."""
        found = []
        for spec, output in zip(self.spec.outputs, outputs, strict=True):
            shape = shape_of(spec.shape, self._single(row))
            mine = output[index : index + 1] if self.batch else output
            found.append(mine[tuple(slice(size) for size in shape)])
        return found

    def _values(self, tensor: TensorSpec, row: Row) -> NDArray[Any]:
        """An input's values for one row; those of a shared input depend on nothing that differs within a batch."""
        if self.is_shared(tensor):
            place = bucket_name({name: size for name, size in row.point.items() if name in tensor.shape})
        else:
            place = f"{bucket_name(row.point)} {row.variant}"
        shape = shape_of(tensor.shape, self._single(row))
        return legal(tensor, shape, generator_of("legal", self.method, tensor.name, place))

    def exact_sizes(self, point: Sizes) -> dict[str, int]:
        """Every dimension's size, in order, for one row at a point."""
        return {name: 1 if name == self.batch else point[name] for name in self.dims}

    def _single(self, row: Row) -> dict[str, int]:
        return {**row.point, self.batch: 1} if self.batch else row.point


def points_of(dims: Sequence[DimSpec], bucket: Sizes, *, stored: bool = False) -> list[dict[str, int]]:
    """Sizes of the dimensions without the batch at which a bucket is proved: its own, and its lower edges.

    At a lower edge all dimensions are at their smallest, or one of them alone: the sizes of two may cancel out. The
    smallest is one above the bucket below, since selection gives a smaller request another bucket. With `stored` it is
    the bucket below itself, whose stored executable can then be the reference, as far as every size has one below it.
    """
    free = [dim for dim in dims if not dim.batch]
    full = {dim.name: bucket[dim.name] for dim in free}
    lowered = [free, *([dim] for dim in free)]
    points = [full, *({**full, **_lower_edge(chosen, bucket, stored=stored)} for chosen in lowered)]
    return [point for index, point in enumerate(points) if point not in points[:index]]


def _lower_edge(dims: Sequence[DimSpec], bucket: Sizes, *, stored: bool) -> Sizes:
    below = {dim.name: max((size for size in dim.sizes if size < bucket[dim.name]), default=0) for dim in dims}
    if stored and all(below.values()):
        return below
    return {name: size + 1 for name, size in below.items()}


def legal(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Random values within the bounds. A mask is all ones: with a random one, many a model would divide by zero."""
    if is_mask(tensor):
        return np.ones(shape, tensor.dtype)
    return np.asarray(_random(tensor, shape, generator, scale=1.0))


def garbage(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Values within the bounds, and wild where there are none."""
    return np.asarray(_random(tensor, shape, generator, scale=100.0))


def unbounded_values(tensor: TensorSpec) -> tuple[float, ...]:
    """What is not finite and yet within the bounds of an input."""
    if tensor.dtype not in FLOAT_MAX:
        return ()
    below = () if tensor.low is not None else (-np.inf,)
    above = () if tensor.high is not None else (np.inf,)
    return (*below, *above, np.nan) if below and above else (*below, *above)


def not_finite(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Values that are not finite, of those that an input may hold."""
    return generator.choice(np.array(unbounded_values(tensor)), shape).astype(tensor.dtype)


def is_mask(tensor: TensorSpec) -> bool:
    """Whether an input says which positions are valid."""
    if tensor.dtype == "bool":
        return tensor.pad is False
    return tensor.dtype in INT_RANGES and (tensor.low, tensor.high) == (0, 1)


def _random(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> Any:
    if tensor.dtype == "bool":
        return generator.random(shape) < 0.5
    if tensor.dtype in INT_RANGES:
        low, high = _int_bounds(tensor)
        return generator.integers(low, high, shape, endpoint=True).astype(tensor.dtype)
    largest = FLOAT_MAX[tensor.dtype]
    wild = generator.standard_normal(shape) * scale
    if tensor.low is not None and tensor.high is not None:
        wild = tensor.low + (tensor.high - tensor.low) * generator.random(shape)
    elif tensor.low is not None:
        wild = tensor.low + np.abs(wild)
    elif tensor.high is not None:
        wild = tensor.high - np.abs(wild)
    return np.clip(wild, -largest, largest).astype(tensor.dtype)


def _int_bounds(tensor: TensorSpec) -> tuple[int, int]:
    """The declared bounds; where one is missing a small span, since an index may have been declared without bounds."""
    lowest, highest = INT_RANGES[tensor.dtype]
    if tensor.low is not None:
        low = int(tensor.low)
    else:
        low = 0 if tensor.high is None or tensor.high >= 0 else int(tensor.high) - _UNBOUNDED_SPAN
    high = low + _UNBOUNDED_SPAN if tensor.high is None else int(tensor.high)
    return max(low, lowest), min(high, highest)


def _rows(points: Sequence[dict[str, int]], start: int, count: int) -> Iterable[Row]:
    """Rows that alternate between the points, each time with the next value set."""
    for index in range(start, start + count):
        yield Row(points[index % len(points)], index // len(points) % VARIANTS)


def generator_of(*names: str) -> np.random.Generator:
    """A generator seeded by names, the same in every process."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))
