"""The bucket plan: which finite set of shapes a method is compiled for, and in which order a lane loads them.

The minimum set of a method is one bucket: the smallest batch with every other dimension at its largest. By splitting a
request into rows it can answer everything that is legal, so an instance is ready as soon as it is warm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from warmpool.model import Dim, Model, misdeclared

BUCKETS_MAX = 512


@dataclass(frozen=True, slots=True)
class Bucket:
    """One size for each named dimension of a method, in the order of the model's dimensions.

    Attributes:
        sizes: Dimension name to size; empty for a method without named dimensions.
        minimum: Needed before the instance is ready.
        ladder: The CPU lane has an executable of its own for it: the minimum, and the largest batch for throughput.
    """

    sizes: dict[str, int]
    minimum: bool
    ladder: bool

    @property
    def elements(self) -> int:
        """The number of padded elements of an input that has every dimension."""
        return math.prod(self.sizes.values())


class Sized(Protocol):
    """A named dimension, as declared or as a manifest has it."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def batch(self) -> bool: ...


def plan(model: Model, method: str) -> tuple[Bucket, ...]:
    """The buckets of a method in load order: the minimum set, then by size.

    Raises:
        DeclarationError: There are more than `BUCKETS_MAX`.
    """
    dims = model.method_dims(method)
    _check_count(model, method, dims)
    return buckets_over(dims)


def buckets_over(dims: Sequence[Sized]) -> tuple[Bucket, ...]:
    """Every combination of the sizes of these dimensions, in load order."""
    names = [dim.name for dim in dims]
    combined = itertools.product(*(dim.sizes for dim in dims))
    return buckets_of(dims, [dict(zip(names, sizes, strict=True)) for sizes in combined])


def buckets_of(dims: Sequence[Sized], chosen: Iterable[Mapping[str, int]]) -> tuple[Bucket, ...]:
    """These combinations of sizes of these dimensions, in load order."""
    minimum, largest = ends(dims)
    found = [Bucket(dict(sizes), minimum=sizes == minimum, ladder=sizes in (minimum, largest)) for sizes in chosen]
    return tuple(sorted(found, key=_load_order))


def ends(dims: Sequence[Sized]) -> tuple[dict[str, int], dict[str, int]]:
    """The bucket of the minimum set, and the largest one: every plan has both."""
    largest = {dim.name: dim.sizes[-1] for dim in dims}
    return largest | {dim.name: dim.sizes[0] for dim in dims if dim.batch}, largest


def plan_all(model: Model) -> tuple[tuple[str, Bucket], ...]:
    """The buckets of every method in load order."""
    return in_load_order({method: plan(model, method) for method in model.methods})


def in_load_order(plans: Mapping[str, Sequence[Bucket]]) -> tuple[tuple[str, Bucket], ...]:
    """Method and bucket of several plans: all minimum sets first, so that no method waits for another's rest."""
    planned = [(method, bucket) for method, buckets in plans.items() for bucket in buckets]
    return tuple(sorted(planned, key=lambda entry: _load_order(entry[1])))


def _load_order(bucket: Bucket) -> tuple[bool, int]:
    return (not bucket.minimum, bucket.elements)


def _check_count(model: Model, method: str, dims: Sequence[Dim]) -> None:
    count = math.prod(len(dim.sizes) for dim in dims)
    if count > BUCKETS_MAX:
        product = " * ".join(f"{len(dim.sizes)} of {dim.name!r}" for dim in dims)
        raise misdeclared(
            f"{product} sizes make {count} buckets; at most {BUCKETS_MAX} are allowed: "
            "give the dimensions fewer sizes, such as every power of four",
            model=model.name,
            method=method,
        )
