"""Methods as a catalog reads them, made by hand, and the parts of requests for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warmpool.batches import Part
from warmpool.catalog import ServedMethod
from warmpool.manifest import DimSpec, MethodSpec, TensorSpec
from warmpool.selection import Sizes

BATCH = DimSpec(name="batch", max=100, sizes=(1, 2, 4, 8), batch=True)
SEQ = DimSpec(name="seq", max=16, sizes=(4, 8, 16))
WIDTH = DimSpec(name="width", max=5, sizes=(5,))


def tensor(name: str, dtype: str, *shape: int | str, **bounds: Any) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, **bounds)


def method(
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    *,
    model: str = "tiny",
    name: str = "predict",
    dims: tuple[DimSpec, ...] = (BATCH, SEQ, WIDTH),
) -> ServedMethod:
    """A served method; of `dims` it has those that its inputs use."""
    used = {axis for spec in inputs for axis in spec.shape}
    return ServedMethod(
        model=model,
        version="1",
        name=name,
        spec=MethodSpec(programs={"*": "p"}, symbolic=True, inputs=tuple(inputs), outputs=tuple(outputs)),
        dims={dim.name: dim for dim in dims if dim.name in used},
        batch=next((dim.name for dim in dims if dim.batch and dim.name in used), None),
    )


def doubling(name: str = "double", model: str = "tiny") -> ServedMethod:
    """One number a row in, one out."""
    return method([tensor("x", "int32", "batch")], [tensor("y", "int32", "batch")], model=model, name=name)


def part(
    served: ServedMethod,
    need: dict[str, int],
    inputs: list[np.ndarray],
    *,
    arrived_ns: int = 0,
    arrived_s: float = 0.0,
    deadline_s: float = 1e9,
) -> Part:
    """A part of a request; a loop has to run."""
    return Part(
        method=served,
        need=need,
        inputs=inputs,
        deadline_s=deadline_s,
        arrived_ns=arrived_ns,
        arrived_s=arrived_s,
        answer=asyncio.get_running_loop().create_future(),
    )


@dataclass
class Told:
    """A forecast that says what a test tells it to."""

    ready_s: dict[ServedMethod, float] = field(default_factory=dict)
    buckets: list[Sizes] = field(default_factory=list)
    asked: list[Sizes] = field(default_factory=list)

    def ready_in_s(self, method: ServedMethod, need: Sizes) -> float | None:
        self.asked.append(need)
        return self.ready_s.get(method)

    def over_in_s(self) -> float:
        return max(self.ready_s.values(), default=0.0)

    def lacking(self, method: ServedMethod) -> list[Sizes]:
        return self.buckets
