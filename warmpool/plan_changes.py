"""What a lane is to take up and to give up because a version's buckets are others now: decisions over values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from warmpool.catalog import ServedMethod, ServedModel
from warmpool.load_plan import Loadable
from warmpool.manifest import ExecutableSpec, Target


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between a target and what a lane has of its version.

    Attributes:
        new: Executables that the lane has not.
        gone: By method, the numbers of those whose buckets are planned no more.
    """

    new: tuple[ExecutableSpec, ...]
    gone: Mapping[ServedMethod, tuple[int, ...]]


def change_of(model: ServedModel, target: Target, loadables: Mapping[int, Loadable], *, ladder_only: bool) -> Change:
    """Compare what a lane has with a target.

    An executable that is in the plan and not in the target stays: what is warm is kept, whatever becomes of the store.

    Args:
        model: The version.
        target: What the lane's kind of machine has for it.
        loadables: What the lane has, of all models, by number.
        ladder_only: Whether the lane holds the ladder alone.
    """
    methods = set(model.methods.values())
    own = {number: loadable for number, loadable in loadables.items() if loadable.method in methods}
    having = {_place(loadable.method.name, loadable.candidate.bucket) for loadable in own.values()}
    new = tuple(
        spec
        for spec in target.executables
        if spec.is_for(ladder_only=ladder_only) and _place(spec.method, spec.bucket) not in having
    )
    gone = {}
    for method in methods:
        planned = {_place(method.name, bucket) for bucket in planned_buckets(method, target)}
        numbers = [
            number
            for number, loadable in own.items()
            if loadable.method is method and _place(method.name, loadable.candidate.bucket) not in planned
        ]
        if numbers:
            gone[method] = tuple(numbers)
    return Change(new, gone)


def planned_buckets(method: ServedMethod, target: Target) -> Iterator[Mapping[str, int]]:
    """The buckets of a method on the target's kind of machine."""
    if plan := target.plans_by_method.get(method.name):
        yield from plan.buckets
        return
    for sizes in itertools.product(*(dim.sizes for dim in method.dims.values())):
        yield dict(zip(method.dims, sizes, strict=True))


def given_up(
    gone: Mapping[ServedMethod, tuple[int, ...]], loadables: Mapping[int, Loadable], ready: Callable[[int], bool]
) -> list[int]:
    """The numbers of those that can go by now: all others of their method are ready to take their place."""
    return [
        number
        for method, numbers in gone.items()
        if all(
            ready(other) for other, loadable in loadables.items() if loadable.method is method and other not in numbers
        )
        for number in numbers
    ]


def _place(method: str, bucket: Mapping[str, int]) -> tuple[str, frozenset[tuple[str, int]]]:
    return method, frozenset(bucket.items())
