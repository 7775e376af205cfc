"""What the examples have to answer: `jax.jit` of their own functions at the exact shape, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from tests.instance_process import Inferred
from warmpool.model import Method, Model

Arrays = dict[str, np.ndarray]
Draw = Callable[[np.random.Generator, int, dict[str, int]], Arrays]


@dataclass(frozen=True, eq=False)
class Exact:
    """A method of an example, and what is asked of it.

    The reference runs once for each size of the other dimensions, over as many rows as are ever asked: rows depend on
    nothing but themselves, and what is asked are the first ones.
    """

    model: Model
    method: str
    params: Any
    rows_most: int
    draw: Draw

    @property
    def title(self) -> str:
        return f"{self.model.name}:{self.method}"

    def case(self, rows: int, **sizes: int) -> tuple[Arrays, Arrays]:
        """Inputs of these sizes, and the outputs that are right for them."""
        inputs, outputs = _run(self, max(rows, self.rows_most), tuple(sizes.items()))
        return (
            {name: array[:rows] for name, array in inputs.items()},
            {name: array[:rows] for name, array in outputs.items()},
        )

    def assert_right(self, answer: Inferred, expected: Arrays) -> None:
        """Names, shapes and dtypes are the reference's, values within the declared tolerance."""
        assert answer.outputs.keys() == expected.keys()
        for name, array in expected.items():
            found = answer.outputs[name]
            assert (found.shape, found.dtype) == (array.shape, array.dtype), name
            tolerance = self.model.tolerance
            np.testing.assert_allclose(
                found, array, rtol=tolerance.rtol, atol=tolerance.atol, err_msg=f"{self.title} {name}"
            )


@cache
def _run(exact: Exact, rows: int, sizes: tuple[tuple[str, int], ...]) -> tuple[Arrays, Arrays]:
    inputs = exact.draw(np.random.default_rng([rows, *(size for _, size in sizes)]), rows, dict(sizes))
    results = _jitted(exact)(exact.params, **inputs)
    named = results if isinstance(results, dict) else {"output": results}
    return inputs, {name: np.asarray(result) for name, result in named.items()}


@cache
def _jitted(exact: Exact) -> Any:
    declared = exact.model.methods[exact.method]
    assert isinstance(declared, Method)
    return jax.jit(declared.function)


def draw_tokens(random: np.random.Generator, rows: int, sizes: dict[str, int]) -> Arrays:
    """Token ids, the first row's all valid, the others' up to some length."""
    seq = sizes["seq"]
    lengths = random.integers(1, seq + 1, rows)
    lengths[0] = seq
    return {
        "input_ids": random.integers(0, 30_522, (rows, seq), np.int32),
        "attention_mask": (np.arange(seq) < lengths[:, None]).astype(np.int32),
    }


def draw_images(random: np.random.Generator, rows: int, _: dict[str, int]) -> Arrays:
    """Images of noise."""
    return {"image": random.uniform(0, 16, (rows, 8, 8)).astype(np.float32)}


def draw_contracts(random: np.random.Generator, rows: int, _: dict[str, int]) -> Arrays:
    """Contracts near the money."""
    bounds = {
        "spot": (60, 140),
        "strike": (60, 140),
        "rate": (-0.02, 0.1),
        "volatility": (0.1, 0.6),
        "maturity": (0.1, 3),
    }
    numbers = {name: random.uniform(low, high, rows).astype(np.float32) for name, (low, high) in bounds.items()}
    return {**numbers, "is_call": random.integers(0, 2, rows).astype(bool)}


def draw_seeded(random: np.random.Generator, rows: int, sizes: dict[str, int]) -> Arrays:
    """Contracts with seeds."""
    return {**draw_contracts(random, rows, sizes), "seed": random.integers(0, 2**32, rows, np.uint32)}
