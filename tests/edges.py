"""Sizes and inputs for the tiny model's methods: at, one under and one over the edge of every bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tests.tiny import METHODS
from warmpool.manifest import DimSpec
from warmpool.model import Dim


def edges(dim: DimSpec | Dim) -> list[int]:
    """Sizes at, one under and one over every bucket's edge, and the largest that is allowed."""
    near = {size + step for size in dim.sizes for step in (-1, 0, 1)}
    return sorted({size for size in near if 1 <= size <= dim.max} | {dim.max})


def sizes_of(name: str) -> Iterator[dict[str, int]]:
    """Every edge of every dimension of a method, each beside changing sizes of the others."""
    dims = METHODS[name].dims
    longest = max(len(edges(dim)) for dim in dims)
    for shift in range(len(dims)):
        for turn in range(longest):
            yield {dim.name: edges(dim)[(turn + shift * index) % len(edges(dim))] for index, dim in enumerate(dims)}


def inputs_for(name: str, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Small whole numbers within the bounds, the same ones every time, so that sums are exact in any order."""
    random = np.random.default_rng([seed, *sizes.values()])
    made: dict[str, Any] = {}
    for spec in METHODS[name].inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.shape]
        high = 1 if spec.dtype == "bool" else 100 if spec.high is None else int(spec.high)
        made[spec.name] = random.integers(1 if name == "invert" else 0, high + 1, shape)
    return made


def assert_same(name: str, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Shapes and values are those of plain `jax.jit` at the exact shape."""
    for output, expected in METHODS[name].reference(**inputs).items():
        found = np.asarray(outputs[output])
        assert found.shape == expected.shape, output
        np.testing.assert_allclose(found.astype(expected.dtype), expected, rtol=1e-5, atol=1e-5, err_msg=output)
