"""What a plan is fitted to: shapes with weights, from the records of a store or from a file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warmpool.fitting.segments import Floats, Ints
from warmpool.manifest import DimSpec
from warmpool.shape_sketch import HALF_LIFE_S, Shape, summed
from warmpool.traffic_record import TrafficRecord

ROWS_MAX = 10_000_000  # of a file


class BadTrace(ValueError):
    """A file of shapes is not what it has to be; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Shapes of a method that were seen.

    Attributes:
        shapes: Of shape `[n, dimensions]`, each once; no size above the dimension's largest bucket.
        weights: How often each was; of batches how many.
        refused: Weight of what is larger than callers may send, which is not among them.
    """

    shapes: Ints
    weights: Floats
    refused: float = 0.0

    @property
    def count(self) -> float:
        """How many they are."""
        return float(self.weights.sum())


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is known of a method's traffic.

    Attributes:
        requests: As they came. Rows beyond the largest batch are chunks, as they are when they run.
        batches: As they ran: the rows of a batch with the other sizes of each of its parts, which weigh one together.
            A file says nothing of them.
    """

    requests: Observations
    batches: Observations


def from_records(records: Iterable[TrafficRecord], method: str, dims: Sequence[DimSpec], now_s: float) -> Seen:
    """What instances counted, weighed as of now. Records of other dimensions than these do not count."""
    requests: dict[Shape, float] = {}
    batches: dict[Shape, float] = {}
    for record in records:
        counted = record.methods.get(method)
        if counted is None or list(counted.dims) != [dim.name for dim in dims]:
            continue
        factor = 0.5 ** (max(0.0, now_s - record.written_s) / HALF_LIFE_S)
        for total, counts in zip((requests, batches), (counted.requests, counted.batches), strict=True):
            for shape, weight in zip(counts.shapes, counts.weights, strict=True):
                true = _within(shape, dims, counts.error_max)
                total[true] = total.get(true, 0.0) + weight * factor
    return Seen(observed(requests, dims), observed(batches, dims))


def from_file(path: Path, dims: Sequence[DimSpec]) -> Seen:
    """What a file has: CSV with a header that names dimensions, one request a line.

    The batch dimension may be missing, for requests of one row. Other columns are not looked at, but for `weight`,
    which says how many such requests there were.

    Raises:
        BadTrace: The file is not like that.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            for dim in dims:
                if dim.name not in columns and not dim.batch:
                    raise BadTrace(f"{path.name}: its columns are {', '.join(columns)}; {dim.name!r} is missing")
            requests = observed(summed(_lines(path.name, reader, dims)), dims)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path.name} cannot be read: {error}") from error
    return Seen(requests, observed({}, dims))


def observed(shapes: Mapping[Shape, float], dims: Sequence[DimSpec]) -> Observations:
    """Shapes as callers sent them, as they run."""
    total: dict[Shape, float] = {}
    refused = 0.0
    for shape, weight in shapes.items():
        if any(size > _limit(dim) for size, dim in zip(shape, dims, strict=True)):
            refused += weight
            continue
        for chunk, count in _chunks(shape, dims):
            total[chunk] = total.get(chunk, 0.0) + weight * count
    found = np.array(list(total), np.int64).reshape(-1, len(dims))
    return Observations(found, np.array(list(total.values()), np.float64), refused)


def _chunks(shape: Shape, dims: Sequence[DimSpec]) -> Iterator[tuple[Shape, int]]:
    """The parts that a request is split into, if it has more rows than the largest bucket, and how often each is."""
    shape = tuple(max(size, 1) for size in shape)
    axis = next((axis for axis, dim in enumerate(dims) if dim.batch), None)
    if axis is None or shape[axis] <= (largest := dims[axis].sizes[-1]):
        yield shape, 1
        return
    whole, rest = divmod(shape[axis], largest)
    yield (*shape[:axis], largest, *shape[axis + 1 :]), whole
    if rest:
        yield (*shape[:axis], rest, *shape[axis + 1 :]), 1


def _limit(dim: DimSpec) -> int:
    """The largest size that callers may send and that has a bucket, or several."""
    return dim.max if dim.batch else min(dim.max, dim.sizes[-1])


def _within(shape: Shape, dims: Sequence[DimSpec], error_max: float) -> Shape:
    """A shape as it was counted: one that was rounded up was within the limits before."""
    return tuple(
        min(size, limit) if size <= (limit := _limit(dim)) * (1 + error_max) else size
        for size, dim in zip(shape, dims, strict=True)
    )


def _lines(name: str, reader: csv.DictReader[str], dims: Sequence[DimSpec]) -> Iterator[tuple[Shape, float]]:
    for number, line in enumerate(reader, 2):
        if number > ROWS_MAX:
            raise BadTrace(f"{name}: it has more than {ROWS_MAX} lines")
        try:
            shape = tuple(int(line.get(dim.name) or 1) if dim.batch else int(line[dim.name]) for dim in dims)
            weight = float(line.get("weight") or 1)
        except (TypeError, ValueError):
            raise BadTrace(f"{name}: line {number} is {list(line.values())}, allowed: whole numbers") from None
        if min(shape) < 0 or not 0 <= weight < float("inf"):
            raise BadTrace(f"{name}: line {number} is {list(line.values())}, allowed: numbers from 0")
        yield shape, weight
