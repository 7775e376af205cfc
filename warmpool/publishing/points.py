"""The exact sizes at which a bucket is proved: its edges, and some inside.

A bucket runs whatever fits into it: where no smaller one is warm, and where rows share it with a longer one. So every
size from 1 up is its business, though those that only it can run are the likelier ones. All here is without the batch:
buckets that differ in nothing else are proved at the same points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from warmpool.manifest import bucket_name
from warmpool.publishing.values import number_of

Sizes = Mapping[str, int]
Point = dict[str, int]

INTERIOR_MIN = 6  # sizes inside that a method is proved at, where its buckets have so many: each at least at one
SHARED_MAX = 2  # of those of smaller buckets: they have their references already


def edge_points(bucket: Point, planned: Sequence[Point], *, stored: bool = False) -> list[Point]:
    """A bucket's own sizes, the next smaller ones, one more than these, one less than its own, and 1.

    One more are all sizes together, and each of them alone: those of two dimensions may cancel out.

    Args:
        bucket: One of the planned.
        planned: All buckets of a method.
        stored: Whether stored executables are to be the references. The next smaller sizes then stand for one more,
            where every size has one below, and one less than the bucket's own is left out.
    """
    together_and_alone = [list(bucket), *([name] for name in bucket)]
    lowered = [{**bucket, **_lower_edge(bucket, names, planned, stored=stored)} for names in together_and_alone]
    under = [] if stored else [{name: max(1, size - 1) for name, size in bucket.items()}]
    return _each_once([bucket, *lowered, _next_smaller(bucket, planned), *under, dict.fromkeys(bucket, 1)])


def interior_points(bucket: Point, planned: Sequence[Point], program: str) -> list[Point]:
    """Sizes inside a bucket, by lot: some above the next smaller ones, and some that smaller buckets drew.

    Args:
        bucket: One of the planned.
        planned: All buckets of a method.
        program: Digest of what it is compiled from. With the bucket it is the seed, of which SHA-256 makes the numbers;
            so a publish, a proof of other weights and one on another machine draw the same.
    """
    smaller = [one for one in planned if _is_smaller(one, bucket)]
    smaller.sort(key=lambda one: number_of("below", program, bucket_name(bucket), bucket_name(one)))
    shared = [_drawn(one, planned, program)[0] for one in smaller[:SHARED_MAX]]
    return _each_once([*_drawn(bucket, planned, program), *shared])


def _drawn(bucket: Point, planned: Sequence[Point], program: str) -> list[Point]:
    """At least one point between a bucket and the next smaller sizes, clear of the edges where there is room."""
    ranges = {name: _inside(_below(name, size, planned), size) for name, size in bucket.items()}
    return [
        {
            name: sizes[number_of("inside", program, bucket_name(bucket), name, str(draw)) % len(sizes)]
            for name, sizes in ranges.items()
        }
        for draw in range(max(1, INTERIOR_MIN // len(planned)))
    ]


def _inside(below: int, size: int) -> range:
    return range(below + 2, size - 1) or range(below + 1, size + 1)


def _is_smaller(one: Point, bucket: Point) -> bool:
    return one != bucket and all(size <= bucket[name] for name, size in one.items())


def _next_smaller(bucket: Point, planned: Sequence[Point]) -> Point:
    """The largest of the buckets that are smaller in most dimensions; the bucket itself if none is smaller."""
    smaller = [one for one in planned if _is_smaller(one, bucket)]
    return max(
        smaller,
        key=lambda one: (sum(size < bucket[name] for name, size in one.items()), math.prod(one.values())),
        default=bucket,
    )


def _lower_edge(bucket: Point, names: Iterable[str], planned: Sequence[Point], *, stored: bool) -> Point:
    below = {name: _below(name, bucket[name], planned) for name in names}
    if stored and all(below.values()):
        return below
    return {name: size + 1 for name, size in below.items()}


def _below(name: str, size: int, planned: Sequence[Point]) -> int:
    """The next smaller size of any bucket along a dimension, 0 for none."""
    return max((one[name] for one in planned if one[name] < size), default=0)


def _each_once(points: Iterable[Point]) -> list[Point]:
    return list({bucket_name(point): point for point in points}.values())
