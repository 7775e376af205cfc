"""Proves numpy functions as methods, so that every number can be computed by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool.manifest import DimSpec, Manifest, MethodSpec, TensorSpec, ToleranceSpec, WeightsSpec
from warmpool.publishing.buckets import buckets_over
from warmpool.publishing.points import Point, Sizes, edge_points
from warmpool.publishing.prove import Tally, prove
from warmpool.publishing.subject import Row, Subject, Tensors

BATCH = DimSpec(name="batch", max=4, sizes=(1, 4), batch=True)
SEQ = DimSpec(name="seq", max=8, sizes=(4, 8))
WIDTH = DimSpec(name="width", max=6, sizes=(3, 6))
TWIN = DimSpec(name="twin", max=8, sizes=(4, 8))  # with the same edges as seq
LONG = DimSpec(name="long", max=32, sizes=(16, 32))
TOLERANCE = ToleranceSpec(rtol=1e-5, atol=1e-5)

PER_ROW = ("batch",)

Function = Callable[..., NDArray[Any]]


def edges_only(subject: Subject, bucket: Sizes) -> Sequence[Point]:
    return edge_points(subject.without_batch(bucket), [subject.without_batch(one) for one in planned(subject)])


def planned(subject: Subject) -> list[dict[str, int]]:
    return [bucket.sizes for bucket in buckets_over(list(subject.dims.values()))]


def every_point(subject: Subject, bucket: Sizes) -> Sequence[Point]:
    return subject.points(bucket, planned(subject))


def verdict(
    function: Function,
    *inputs: TensorSpec,
    output: tuple[int | str, ...] = PER_ROW,
    bucket: Mapping[str, int] | None = None,
    exact: Function | None = None,
    tolerance: ToleranceSpec = TOLERANCE,
    dtype: str = "float32",
    points: Callable[[Subject, Sizes], Sequence[Point]] = every_point,
) -> tuple[Tally, str | None]:
    """Prove a numpy function that returns one dtype, against itself (or `exact`) at exact shapes.

    In the largest bucket, or in `bucket`.
    """
    used = {axis for tensor in inputs for axis in tensor.shape}
    dims = tuple(dim for dim in (BATCH, SEQ, WIDTH, TWIN, LONG) if dim.name in used)
    spec = MethodSpec(
        programs={"*": "digest"},
        symbolic=True,
        inputs=inputs,
        outputs=(TensorSpec(name="y", dtype=dtype, shape=output),),
    )
    manifest = Manifest(
        model="toy",
        version="1",
        default_method="predict",
        dims=dims,
        methods={"predict": spec},
        weights=WeightsSpec(digest="", size_bytes=0, tensors=()),
        tolerance=tolerance,
    )
    subject = Subject(manifest, "predict")
    sizes = dict(bucket or {dim.name: dim.sizes[-1] for dim in dims})

    def run(which: Function, tensors: Tensors) -> Tensors:
        with np.errstate(all="ignore"):  # as XLA, which computes with infinities and says nothing
            return [which(*tensors).astype(dtype)]

    def references(row: Row) -> Tensors:
        return run(exact or function, subject.exact(row))

    return prove(subject, sizes, points(subject, sizes), functools.partial(run, function), references)
