"""A model's params as a flat list of named host arrays.

Weights are arguments of a program, never constants in it: a new checkpoint of the same architecture compiles nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from warmpool.dtypes import dtype_problem
from warmpool.errors import DeclarationError
from warmpool.model import Model, misdeclared
from warmpool.publishing.modelfile import described


@dataclass(frozen=True, slots=True)
class Params:
    """Weights by name, in the order in which `tree` takes them.

    Attributes:
        weights: Name to array; a name is the path in the pytree, such as "layers/0/kernel".
        tree: The structure that `jax.tree.unflatten` needs to give the function its params back.
    """

    weights: dict[str, NDArray[Any]]
    tree: Any

    @property
    def specs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shape and dtype of every weight, in order."""
        return tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.weights.values())


def materialise(model: Model) -> Params:
    """Load, restore or take a model's params, and flatten them.

    Raises:
        DeclarationError: They cannot be loaded, or a leaf cannot be a weight.
    """
    pytree = _restored(model)
    leaves, tree = jax.tree_util.tree_flatten_with_path(pytree)
    names = _names([jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves])
    weights = {name: _array(model, name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    return Params(weights, tree)


def _restored(model: Model) -> Any:
    if isinstance(model.params, Path):
        return _restored_checkpoint(model, model.params)
    is_leaf = jax.tree_util.all_leaves([model.params])
    if not (is_leaf and callable(model.params)):
        return model.params
    try:
        return model.params()
    except DeclarationError:
        raise
    except Exception as error:
        raise misdeclared(f"its params loader failed: {described(error)}", model=model.name) from error


def _restored_checkpoint(model: Model, path: Path) -> Any:
    if not path.is_dir():
        raise misdeclared(
            f"params is {path.name!r}, which is no checkpoint folder; train and save it first", model=model.name
        )
    import orbax.checkpoint as ocp  # 0.2 s that models without a checkpoint need not pay

    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            saved = checkpointer.metadata(path.absolute()).item_metadata.tree
            # As host arrays: the checkpoint may come from a machine with another number of devices.
            wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
            return checkpointer.restore(path.absolute(), restore_args=wanted)
    except Exception as error:
        problem = f"the Orbax checkpoint {path.name!r} cannot be restored: {described(error)}"
        raise misdeclared(problem, model=model.name) from error


def _names(paths: list[str]) -> list[str]:
    """The paths, made distinct where two keys of different types print alike."""
    seen: Counter[str] = Counter()
    names = []
    for path in paths:
        seen[path] += 1
        names.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return names


def _array(model: Model, name: str, leaf: Any) -> NDArray[Any]:
    where = {"model": model.name, "weight": name or "params"}
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        change = "make it an array, or keep constants in the function"
        raise misdeclared(f"{leaf!r:.80} is a {type(leaf).__name__}, not an array; {change}", **where)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise misdeclared(
            "a random key cannot be stored; store jax.random.key_data(key) and wrap it in the function", **where
        )
    if problem := dtype_problem(leaf.dtype.name):
        raise misdeclared(f"{problem}: convert the weight before it is returned", **where)
    array = np.asarray(leaf)
    if jnp.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
        raise misdeclared(
            f"{np.isnan(array).sum()} of its {array.size} values are NaN; publish a sound checkpoint", **where
        )
    return array
