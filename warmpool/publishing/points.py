"""The exact sizes at which a bucket is proved: its edges, and some inside.

A bucket runs whatever fits into it: where no smaller one is warm, and where rows share it with a longer one. So every
size from 1 up is its business, though those that only it can run are the likelier ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from warmpool.manifest import DimSpec, bucket_name
from warmpool.publishing.values import number_of

Sizes = Mapping[str, int]
Point = dict[str, int]

INTERIOR_MIN = 6  # sizes inside that a method is proved at, where its buckets have so many: each at least at one
SHARED_MAX = 2  # of those of smaller buckets: they have their references already


def edge_points(dims: Sequence[DimSpec], bucket: Sizes, *, stored: bool = False) -> list[Point]:
    """Sizes of the dimensions without the batch: the bucket's own, the one below, one more than that, one less, and 1.

    One more than the bucket below are all dimensions together, and each of them alone: the sizes of two may cancel out.

    Args:
        dims: A method's, the batch among them or not.
        bucket: One of its buckets.
        stored: Whether stored executables are to be the references. The bucket below then stands for one more than it,
            where every size has one below, and one less than the bucket is left out.
    """
    free = [dim for dim in dims if not dim.batch]
    full = {dim.name: bucket[dim.name] for dim in free}
    below = {dim.name: _below(dim, bucket) or bucket[dim.name] for dim in free}
    lowered = [{**full, **_lower_edge(chosen, bucket, stored=stored)} for chosen in (free, *([dim] for dim in free))]
    under = [] if stored else [{name: max(1, size - 1) for name, size in full.items()}]
    return _each_once([full, *lowered, below, *under, dict.fromkeys(full, 1)])


def interior_points(dims: Sequence[DimSpec], bucket: Sizes, program: str) -> list[Point]:
    """Sizes inside a bucket, by lot: some above the bucket below, and some of those that smaller buckets drew.

    Args:
        dims: A method's, the batch among them or not.
        bucket: One of its buckets.
        program: Digest of what it is compiled from. With the sizes of the bucket, but not of its batch, it is the seed
            of SHA-256 as a generator, so a publish, a proof of other weights and one on another machine agree.
    """
    free = [dim for dim in dims if not dim.batch]
    full = {dim.name: bucket[dim.name] for dim in free}
    below = [sizes for sizes in _buckets_within(free, full) if sizes != full]
    below.sort(key=lambda sizes: number_of("below", program, bucket_name(full), bucket_name(sizes)))
    shared = [_drawn(free, sizes, program)[0] for sizes in below[:SHARED_MAX]]
    return _each_once([*_drawn(free, full, program), *shared])


def _drawn(free: Sequence[DimSpec], bucket: Point, program: str) -> list[Point]:
    """At least one point between a bucket and the one below, and clear of its edges where there is room."""
    count = max(1, INTERIOR_MIN // math.prod(len(dim.sizes) for dim in free))
    ranges = {dim.name: _inside(_below(dim, bucket), bucket[dim.name]) for dim in free}
    return [
        {
            name: sizes[number_of("inside", program, bucket_name(bucket), name, str(draw)) % len(sizes)]
            for name, sizes in ranges.items()
        }
        for draw in range(count)
    ]


def _inside(below: int, size: int) -> range:
    return range(below + 2, size - 1) or range(below + 1, size + 1)


def _buckets_within(free: Sequence[DimSpec], bucket: Point) -> Iterable[Point]:
    sizes = [[size for size in dim.sizes if size <= bucket[dim.name]] for dim in free]
    return (dict(zip(bucket, chosen, strict=True)) for chosen in itertools.product(*sizes))


def _lower_edge(dims: Sequence[DimSpec], bucket: Sizes, *, stored: bool) -> Sizes:
    below = {dim.name: _below(dim, bucket) for dim in dims}
    if stored and all(below.values()):
        return below
    return {name: size + 1 for name, size in below.items()}


def _below(dim: DimSpec, bucket: Sizes) -> int:
    """The size of the bucket below along a dimension, 0 for none."""
    return max((size for size in dim.sizes if size < bucket[dim.name]), default=0)


def _each_once(points: Sequence[Point]) -> list[Point]:
    return [point for index, point in enumerate(points) if point not in points[:index]]
