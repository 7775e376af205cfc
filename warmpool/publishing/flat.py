"""A method as a function of flat arguments: every weight, then every input; it returns its outputs flat.

Who compiles or runs a program then needs neither the author's code nor their pytree types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from warmpool.dtypes import dtype_problem
from warmpool.model import NAME, Method, Model, misdeclared
from warmpool.publishing.params import Params

OUTPUT = "output"  # what the one tensor of a method that returns no dict is called


class FlatMethod:
    """A method of a model with its params flattened.

    Attributes:
        output_names: Known once it was traced.
    """

    def __init__(self, model: Model, method: str, params: Params) -> None:
        declared = model.methods[method]
        assert isinstance(declared, Method)
        self.where = {"model": model.name, "method": method}
        self.dims = model.method_dims(method)
        self.inputs = model.method_inputs(method)
        self.output_names: tuple[str, ...] = ()
        self._function = declared.function
        self._params = params

    def __call__(self, *arguments: Any) -> tuple[jax.Array, ...]:
        """Weights, then inputs, in order."""
        count = len(self._params.weights)
        params = jax.tree.unflatten(self._params.tree, arguments[:count])
        inputs = dict(zip(self.inputs, arguments[count:], strict=True))
        outputs = self._named(self._function(params, **inputs))
        self.output_names = tuple(outputs)
        return tuple(self._array(name, value) for name, value in outputs.items())

    def arguments(self, sizes: Mapping[str, Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What it is traced with, where the named dimensions have these sizes, ints or symbols."""
        inputs = (
            jax.ShapeDtypeStruct(
                tuple(dim if isinstance(dim, int) else sizes[dim.name] for dim in tensor.dims), jnp.dtype(tensor.dtype)
            )
            for tensor in self.inputs.values()
        )
        return (*self._params.specs, *inputs)

    def symbols(self) -> dict[str, Any]:
        """A symbolic size for each named dimension, and its limit: slices up to that are then no open question."""
        if not self.dims:
            return {}
        names = [dim.name for dim in self.dims]
        limits = [f"{dim.name} <= {dim.sizes[-1]}" for dim in self.dims]
        return dict(zip(names, jax.export.symbolic_shape(", ".join(names), constraints=limits), strict=True))

    def fresh(self) -> Callable[..., tuple[jax.Array, ...]]:
        """The function for JAX to trace, new each time: a cached trace would leave the output names of another one.

        Its name is part of a program's text, so it is always the same.
        """

        def program(*arguments: Any) -> tuple[jax.Array, ...]:
            return self(*arguments)

        return program

    def on_cpu(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run it under `jax.jit` on the CPU of this process, with its own weights; its outputs in order."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return [np.asarray(one) for one in jax.jit(self.fresh())(*self._params.weights.values(), *inputs)]

    def _named(self, returned: Any) -> dict[str, Any]:
        outputs = returned if isinstance(returned, dict) else {OUTPUT: returned}
        if not outputs:
            raise misdeclared("it returns an empty dict; return at least one tensor", **self.where)
        for name in outputs:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                change = f"use a name that matches {NAME.pattern}"
                raise misdeclared(f"it returns a dict with the key {name!r}; {change}", **self.where)
        return outputs

    def _array(self, name: str, value: Any) -> jax.Array:
        where = {**self.where, "output": name}
        if not isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float):
            change = "return a tensor or a flat dict of tensors"
            raise misdeclared(f"it is a {type(value).__name__}; {change}", **where)
        array = jnp.asarray(value)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            raise misdeclared("it is a random key; return jax.random.key_data(key)", **where)
        if problem := dtype_problem(array.dtype.name):
            raise misdeclared(problem, **where)
        return array
