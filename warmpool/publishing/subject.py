"""A method as its proof sees it: which exact shapes are proved, with which values, and how a batch of them is padded.

Everything here is a pure function of the manifest, so that the processes that run references and trials agree on every
number without sending one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from warmpool.manifest import DimSpec, Manifest, TensorSpec, bucket_name
from warmpool.publishing.points import Point, Sizes, edge_points, interior_points
from warmpool.publishing.values import Fill, content, generator_of, legal, one_sided
from warmpool.symbolic import shape_of

Tensors = list[NDArray[Any]]  # in the order of the method's inputs or outputs
Rows = tuple["Row", ...]

FILLS: tuple[Fill, ...] = ("garbage", "NaN", "infinity")  # beside which an answer has to be the one beside "written"
VARIANTS = 3  # value sets a point; rows beyond repeat them
_SIDES = (0, 1, -1)  # of the padding, on which a value set lies (`one_sided`)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch, or all of a method without a batch dimension: an exact shape and one of its value sets."""

    point: Point
    variant: int


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a bucket: the valid rows, and what their padding and the rows after them hold.

    Attributes:
        rows: The valid rows.
        fill: "written" is what an instance writes: the declared pad, and zeros where none is declared. The others are
            legal content of that kind, as far as there is any, in every place that the method has to ignore: the
            padding of an input without a declared pad, and the rows after the valid ones, which are those of other
            callers. The padding of an input with a declared pad is that pad, here as in an instance.
    """

    rows: Rows
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

    def without_batch(self, sizes: Sizes) -> Point:
        """Sizes of the dimensions that rows differ in."""
        return {name: size for name, size in sizes.items() if name != self.batch}

    def points(self, bucket: Sizes, planned: Iterable[Sizes], *, stored: bool = False) -> list[Point]:
        """The exact sizes at which one of the planned buckets is proved (`edge_points`, `interior_points`)."""
        own = self.without_batch(bucket)
        others = list({bucket_name(one): one for one in map(self.without_batch, planned)}.values())
        program = ",".join(sorted(set(self.spec.programs.values())))  # one, if its dimensions are symbolic
        edges = edge_points(own, others, stored=stored)
        return edges + [point for point in interior_points(own, others, program) if point not in edges]

    def batches(self, bucket: Sizes, points: Sequence[Point]) -> list[tuple[Rows, tuple[Fill, ...]]]:
        """The batches that a bucket is proved with: valid rows, and what lies around them beside what is written.

        Every point is in a batch of nothing but valid rows. One leaves room for a neighbour, and begins with a point
        that is padded if any is. A single row, and one more than the next smaller bucket has, are beside nothing but
        what an instance writes after them: other content there is other callers' rows, as in the batch before.
        """
        groups = [[point] for point in points] if self._shares_shapes() else [list(points)]
        count = bucket[self.batch] if self.batch else 1
        whole = [
            tuple(_rows(group, first + start, count))
            for first, group in enumerate(groups)
            for start in range(0, len(group), count)
        ]
        with_room = [tuple(_rows(groups[-1], 1, few)) for few in self._fewer_rows(count)]
        return [
            *((rows, FILLS) for rows in (*whole, *with_room[:1])),
            *((rows, ()) for rows in with_room[1:]),
        ]

    def _fewer_rows(self, count: int) -> list[int]:
        """How many rows a batch is filled with at its lower edges, the largest first."""
        if self.batch is None or count == 1:
            return []
        below = max((size for size in self.dims[self.batch].sizes if size < count), default=0)
        return sorted({count - 1, min(below + 1, count - 1), 1}, reverse=True)

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
        single = self.batch is None or self.is_shared(tensor)
        rows: list[tuple[Any, Row]] = [(Ellipsis, case.rows[0])] if single else list(enumerate(case.rows))
        shape = shape_of(tensor.shape, bucket)
        generator = generator_of(case.fill, self.method, tensor.name, bucket_name(dict(bucket)))
        array = content(tensor, case.fill, shape, generator)
        for index, row in rows:
            if tensor.pad is not None:
                array[index] = tensor.pad
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
        shape = shape_of(tensor.shape, self._single(row))
        if self.is_shared(tensor):
            place = bucket_name({name: size for name, size in row.point.items() if name in tensor.shape})
            return legal(tensor, shape, generator_of("legal", self.method, tensor.name, place))
        place = f"{bucket_name(row.point)} {row.variant}"
        values = legal(tensor, shape, generator_of("legal", self.method, tensor.name, place))
        return one_sided(tensor, values, _SIDES[row.variant])

    def exact_sizes(self, point: Sizes) -> dict[str, int]:
        """Every dimension's size, in order, for one row at a point."""
        return {name: 1 if name == self.batch else point[name] for name in self.dims}

    def _single(self, row: Row) -> dict[str, int]:
        return {**row.point, self.batch: 1} if self.batch else row.point


def _rows(points: Sequence[Point], start: int, count: int) -> Iterable[Row]:
    """Rows that alternate between the points, each with another value set than the one before and than the last time.

    Where rows are few, points of all sorts of value sets are still among them.
    """
    for index in range(start, start + count):
        turn, place = divmod(index, len(points))
        yield Row(points[place], (place + turn) % VARIANTS)
