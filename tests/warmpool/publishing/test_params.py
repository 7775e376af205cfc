"""Params become named host arrays, wherever they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from warmpool.errors import DeclarationError
from warmpool.model import Dim, Model, Tensor
from warmpool.publishing.params import Params, materialise


def model_with(params: Any) -> Model:
    batch = Dim("batch", max=2, batch=True)
    return Model(
        name="toy", methods={"predict": lambda params, x: x}, params=params, inputs={"x": Tensor("int8", (batch,))}
    )


def refusal(params: Any) -> str:
    with pytest.raises(DeclarationError) as caught:
        materialise(model_with(params))
    return str(caught.value)


def unflattened(params: Params) -> Any:
    return jax.tree.unflatten(params.tree, list(params.weights.values()))


TREE = {
    "layers": [{"kernel": np.ones((2, 3), np.float32)}, {"kernel": jnp.zeros(3, jnp.bfloat16)}],
    "step": np.int32(4),
}


@pytest.mark.parametrize("params", [TREE, lambda: TREE], ids=["pytree", "loader"])
def test_weights_are_named_by_their_path(params: Any) -> None:
    found = materialise(model_with(params))
    assert list(found.weights) == ["layers/0/kernel", "layers/1/kernel", "step"]
    assert [weight.dtype.name for weight in found.weights.values()] == ["float32", "bfloat16", "int32"]
    assert jax.tree.map(np.shape, unflattened(found)) == jax.tree.map(np.shape, TREE)


def test_keys_that_print_alike_have_names_of_their_own() -> None:
    params = {"layers": [np.zeros(1, np.int8)], "layers/0": np.ones(1, np.int8)}
    assert list(materialise(model_with(params)).weights) == ["layers/0", "layers/0#2"]


def test_a_model_may_have_no_params() -> None:
    found = materialise(model_with(None))
    assert found.weights == {}
    assert unflattened(found) is None


def test_a_checkpoint_folder_is_restored_as_host_arrays(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint", {"layers": {"0": {"kernel": jnp.ones((2, 3))}}})
    found = materialise(model_with(tmp_path / "checkpoint"))
    assert list(found.weights) == ["layers/0/kernel"]
    np.testing.assert_array_equal(found.weights["layers/0/kernel"], np.ones((2, 3)))


def fails() -> Any:
    raise FileNotFoundError("weights.bin")


MISTAKES: dict[str, tuple[Any, str]] = {
    "python number": (
        {"eps": 1e-6},
        "weight 'eps': 1e-06 is a float, not an array; make it an array, or keep constants",
    ),
    "text": ({"name": "bert"}, "weight 'name': 'bert' is a str, not an array"),
    "the params themselves": (3.0, "weight 'params': 3.0 is a float, not an array"),
    "wide": (
        {"w": np.zeros(2)},
        "weight 'w': dtype 'float64' is not allowed: JAX computes in 32 bits by default; use 'float32'",
    ),
    "complex": ({"w": np.zeros(2, np.complex64)}, "weight 'w': dtype 'complex64' is not allowed"),
    "random key": (
        {"rng": jax.random.key(0)},
        "weight 'rng': a random key cannot be stored; store jax.random.key_data(key)",
    ),
    "NaN": (
        {"w": np.array([1, np.nan], np.float32)},
        "weight 'w': 1 of its 2 values are NaN; publish a sound checkpoint",
    ),
    "loader that fails": (fails, "model 'toy': its params loader failed: FileNotFoundError: weights.bin"),
    "no folder": (
        Path("/nowhere/checkpoint"),
        "params is 'checkpoint', which is no checkpoint folder; train and save it",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_params_that_cannot_be_weights_are_refused(mistake: str) -> None:
    params, message = MISTAKES[mistake]
    assert message in refusal(params)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert f"the Orbax checkpoint {tmp_path.name!r} cannot be restored: " in refusal(tmp_path)
