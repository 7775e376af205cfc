"""How an author declares a model.

Importing this file loads neither jax nor numpy, so a declaration can be read and checked anywhere. Whatever can be
known from the declaration alone is checked when it is constructed; what needs a trace is checked by
`warmpool.publishing.export`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warmpool.dtypes import is_number
from warmpool.inputs import NAME, Dim, LengthMask, Tensor, check_name, misdeclared

__all__ = ["NAME", "Dim", "LengthMask", "Method", "Model", "Tensor", "Tolerance", "misdeclared"]

DIMS_MAX = 8

MODEL_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class Method:
    """A function `f(params, **inputs)` and its inputs, where they differ from the model's."""

    function: Callable[..., Any]
    inputs: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an executable may be from the reference: `|a - b| <= atol + rtol * |b|`."""

    rtol: float = 1e-5
    atol: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not is_number(value) or value < 0:
                raise misdeclared(f"tolerance {name}={value!r}; it must be a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class Model:
    """A model: named methods over shared params.

    After construction every value of `methods` is a `Method` whose inputs are set.

    Attributes:
        name: Matches `[a-z][a-z0-9-]{0,62}`.
        methods: Name to a function `f(params, **inputs)`, or a `Method`. A function returns a tensor or a dict of them.
        params: A pytree of arrays, a loader without arguments, the path of an Orbax checkpoint folder, or None.
        inputs: The inputs of every method that does not bring its own: each a `Tensor`, or a `LengthMask`.
        tolerance: How exactly executables must agree with the reference.

    Raises:
        DeclarationError: What is wrong, where, and what to change.
    """

    name: str
    methods: Mapping[str, Callable[..., Any] | Method]
    params: Any = None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)

    def __post_init__(self) -> None:
        check_name(MODEL_NAME, "model", self.name)
        if not isinstance(self.tolerance, Tolerance):
            raise misdeclared(f"tolerance is {self.tolerance!r}; use Tolerance(rtol=..., atol=...)", model=self.name)
        if isinstance(self.params, str):
            change = "for a checkpoint folder use pathlib.Path"
            raise misdeclared(f"params is the text {self.params!r}; {change}", model=self.name)
        if not _is_filled_mapping(self.methods):
            raise misdeclared("methods is empty; declare at least one: methods={'predict': f}", model=self.name)
        resolved = {name: self._resolve(name, given) for name, given in self.methods.items()}
        object.__setattr__(self, "methods", resolved)
        self._check_dims()

    def _resolve(self, name: str, given: Callable[..., Any] | Method) -> Method:
        check_name(NAME, "method", name, model=self.name)
        where = {"model": self.name, "method": name}
        method = given if isinstance(given, Method) else Method(given)
        if not callable(method.function):
            raise misdeclared(f"{method.function!r} cannot be called; give a function f(params, **inputs)", **where)
        inputs = self.inputs if method.inputs is None else method.inputs
        if not _is_filled_mapping(inputs):
            raise misdeclared("no inputs; declare inputs={'name': Tensor(...)} on the model or the method", **where)
        for key, tensor in inputs.items():
            check_name(NAME, "input", key, **where)
            if not isinstance(tensor, Tensor):
                raise misdeclared(f"{tensor!r} is not a Tensor; use Tensor(dtype, dims)", **where, input=key)
        _check_signature(method.function, inputs, where)
        return Method(method.function, _with_whole_masks(inputs, where))

    def _check_dims(self) -> None:
        seen: dict[str, Dim] = {}
        for method in self.methods:
            for name, tensor in self.method_inputs(method).items():
                for dim in tensor.named:
                    first = seen.setdefault(dim.name, dim)
                    if first != dim:
                        where = {"model": self.name, "method": method, "input": name, "dimension": dim.name}
                        change = "define it once and use that object, or rename one"
                        raise misdeclared(f"defined twice, as {first} and as {dim}; {change}", **where)
        batches = [name for name, dim in seen.items() if dim.batch]
        if len(batches) > 1:
            names = ", ".join(batches)
            raise misdeclared(f"{len(batches)} batch dimensions ({names}); keep batch=True on one", model=self.name)
        if len(seen) > DIMS_MAX:
            raise misdeclared(f"{len(seen)} named dimensions; at most {DIMS_MAX} are allowed", model=self.name)

    def method_inputs(self, method: str) -> Mapping[str, Tensor]:
        """The inputs of a method, by name, in declared order."""
        declared = self.methods[method]
        assert isinstance(declared, Method)
        assert declared.inputs is not None
        return declared.inputs

    def method_dims(self, method: str) -> tuple[Dim, ...]:
        """The named dimensions a method's inputs use, in the order of `dims`."""
        used = {dim for tensor in self.method_inputs(method).values() for dim in tensor.named}
        return tuple(dim for dim in self.dims if dim in used)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The named dimensions of all methods: the batch dimension first, then in order of appearance."""
        tensors = [tensor for method in self.methods for tensor in self.method_inputs(method).values()]
        found = dict.fromkeys(dim for tensor in tensors for dim in tensor.named)
        return tuple(sorted(found, key=lambda dim: not dim.batch))

    @property
    def default_method(self) -> str:
        """The method of a request that names none: "predict" where there is one, else the first."""
        return "predict" if "predict" in self.methods else next(iter(self.methods))


def _with_whole_masks(inputs: Mapping[str, Tensor], where: dict[str, str]) -> dict[str, Tensor]:
    """The inputs, their length masks with the batch dimension of the others."""
    others = {dim.name: dim for one in inputs.values() if not isinstance(one, LengthMask) for dim in one.named}
    batch = next((dim for dim in others.values() if dim.batch), None)
    whole = dict(inputs)
    for key, tensor in inputs.items():
        if isinstance(tensor, LengthMask):
            if tensor.dim.name not in others:
                problem = "no input but length masks has it, so nothing says how long a row is; give it to another one"
                raise misdeclared(problem, **where, input=key, dimension=tensor.dim.name)
            whole[key] = LengthMask(tensor.dim, tensor.dtype, batch=batch)
    return whole


def _is_filled_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and len(value) > 0


def _check_signature(function: Callable[..., Any], inputs: Mapping[str, Tensor], where: dict[str, str]) -> None:
    """Checks that `function` can be called as `function(params, **inputs)`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # a callable written in C has no signature to check; tracing it will tell
    wanted = f"f(params, {', '.join(inputs)})"
    first = parameters[0] if parameters else None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if first is None or first.kind not in positional or first.name in inputs:
        got = first.name if first else "missing"
        raise misdeclared(f"the first parameter must be params, but is {got}; write it as {wanted}", **where)
    named = {one.name: one for one in parameters[1:] if one.kind in (inspect.Parameter.KEYWORD_ONLY, positional[1])}
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    for name in inputs:
        if name not in named and not takes_any:
            raise misdeclared(f"the function has no parameter {name!r}; write it as {wanted}", **where, input=name)
    for name, parameter in named.items():
        if name not in inputs and parameter.default is inspect.Parameter.empty:
            change = "declare it in inputs or give it a default"
            raise misdeclared(f"the function's parameter {name!r} is no declared input; {change}", **where)
