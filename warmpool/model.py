"""How an author declares a model.

Importing this file loads neither jax nor numpy, so a declaration can be read and checked anywhere. Whatever can be
known from the declaration alone is checked when it is constructed; what needs a trace is checked by
`warmpool.publishing.export`.
"""

from __future__ import annotations

import inspect
import keyword
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from warmpool.dtypes import Scalar, dtype_problem, is_int, is_number, value_problem
from warmpool.errors import DeclarationError

DIMS_MAX = 8
SIZES_MAX = 64

MODEL_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_SYMBOLIC_WORDS = {"max", "min", "mod", "floordiv", *keyword.kwlist}


def misdeclared(problem: str, **where: str | None) -> DeclarationError:
    """The error whose message begins with the place: "model 'embed', input 'x': ..."."""
    place = ", ".join(f"{kind} {name!r}" for kind, name in where.items() if name is not None)
    return DeclarationError(f"{place}: {problem}" if place else problem)


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension of inputs.

    Attributes:
        name: Used in messages, bucket names and output shapes.
        max: The largest size a caller may send.
        sizes: Bucket sizes, ascending; by default the powers of two below `max`, and `max`. The last one is `max`,
            except for a batch dimension: requests with more rows than the largest size are split.
        batch: Rows of different requests may be merged along this dimension. At most one a model, always axis 0.
    """

    name: str
    max: int
    sizes: tuple[int, ...] = ()
    batch: bool = False

    def __post_init__(self) -> None:
        _check_name(NAME, "dimension", self.name)
        if self.name in _SYMBOLIC_WORDS:
            raise misdeclared("this word has a meaning in shape expressions; choose another name", dimension=self.name)
        if not is_int(self.max) or self.max < 1:
            raise misdeclared(f"max is {self.max!r}; it must be an int of at least 1", dimension=self.name)
        if not _are_ints(self.sizes):
            raise misdeclared(f"sizes is {self.sizes!r}; it must be a tuple of ints", dimension=self.name)
        object.__setattr__(self, "sizes", tuple(self.sizes) or _powers_of_two(self.max))
        self._check_sizes()

    def _check_sizes(self) -> None:
        last = self.sizes[-1]
        if any(size < 1 for size in self.sizes):
            raise misdeclared(f"sizes {self.sizes} must all be at least 1", dimension=self.name)
        if any(lower >= higher for lower, higher in pairwise(self.sizes)):
            raise misdeclared(f"sizes {self.sizes} must ascend, each only once", dimension=self.name)
        if len(self.sizes) > SIZES_MAX:
            raise misdeclared(f"{len(self.sizes)} sizes; at most {SIZES_MAX} are allowed", dimension=self.name)
        if last > self.max:
            change = "raise max or drop the size"
            raise misdeclared(f"the last size {last} is above max={self.max}; {change}", dimension=self.name)
        if last != self.max and not self.batch:
            raise misdeclared(
                f"the last size is {last}, so a request up to max={self.max} would fit no bucket; "
                f"add {self.max} to sizes or set max={last}",
                dimension=self.name,
            )


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input: a dtype and its axes.

    Attributes:
        dtype: numpy's name; one of `warmpool.dtypes.DTYPES`.
        dims: A `Dim` for a named axis, an int for a fixed one.
        pad: What padding is filled with, where the method relies on it. None: the method ignores what is in the
            padding, which publishing proves with garbage; zeros are written.
        low: Smallest allowed value, inclusive; None for no bound.
        high: Largest allowed value, inclusive; None for no bound.
    """

    dtype: str
    dims: tuple[Dim | int, ...]
    pad: Scalar | None = None
    low: Scalar | None = None
    high: Scalar | None = None

    def __post_init__(self) -> None:
        if problem := dtype_problem(self.dtype):
            raise misdeclared(problem)
        if not isinstance(self.dims, tuple | list):
            raise misdeclared(f"dims is {self.dims!r}; it must be a tuple of Dim and int, such as (batch, 64)")
        object.__setattr__(self, "dims", tuple(self.dims))
        for axis, dim in enumerate(self.dims):
            _check_axis(axis, dim)
        for name, value in (("pad", self.pad), ("low", self.low), ("high", self.high)):
            if value is not None and (problem := value_problem(self.dtype, value)):
                raise misdeclared(f"{name}={problem}")
        self._check_bounds()

    def _check_bounds(self) -> None:
        if self.dtype == "bool" and (self.low, self.high) != (None, None):
            raise misdeclared("low and high have no meaning for bool; drop them")
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if low > high:
            raise misdeclared(f"low={self.low} is above high={self.high}; swap them")
        if self.pad is not None and not low <= self.pad <= high:
            bounds = f"low={self.low} to high={self.high}"
            raise misdeclared(f"pad={self.pad} is outside {bounds}; choose a pad within the bounds")

    @property
    def named(self) -> tuple[Dim, ...]:
        """The named dimensions, each once, in the order of the axes."""
        return tuple(dict.fromkeys(dim for dim in self.dims if isinstance(dim, Dim)))


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
        inputs: The inputs of every method that does not bring its own.
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
        _check_name(MODEL_NAME, "model", self.name)
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
        _check_name(NAME, "method", name, model=self.name)
        where = {"model": self.name, "method": name}
        method = given if isinstance(given, Method) else Method(given)
        if not callable(method.function):
            raise misdeclared(f"{method.function!r} cannot be called; give a function f(params, **inputs)", **where)
        inputs = self.inputs if method.inputs is None else method.inputs
        if not _is_filled_mapping(inputs):
            raise misdeclared("no inputs; declare inputs={'name': Tensor(...)} on the model or the method", **where)
        for key, tensor in inputs.items():
            _check_name(NAME, "input", key, **where)
            if not isinstance(tensor, Tensor):
                raise misdeclared(f"{tensor!r} is not a Tensor; use Tensor(dtype, dims)", **where, input=key)
        _check_signature(method.function, inputs, where)
        return Method(method.function, dict(inputs))

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


def _powers_of_two(maximum: int) -> tuple[int, ...]:
    return (*(2**exponent for exponent in range((maximum - 1).bit_length())), maximum)


def _are_ints(values: object) -> bool:
    return isinstance(values, tuple | list) and all(is_int(value) for value in values)


def _is_filled_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and len(value) > 0


def _check_name(pattern: re.Pattern[str], kind: str, name: object, **where: str | None) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise misdeclared(f"{kind} name {name!r} is not allowed; use a name that matches {pattern.pattern}", **where)


def _check_axis(axis: int, dim: object) -> None:
    if isinstance(dim, Dim):
        if dim.batch and axis != 0:
            problem = f"a batch dimension must be axis 0, not axis {axis}; transpose the input"
            raise misdeclared(problem, dimension=dim.name)
    elif not is_int(dim) or dim < 1:  # type: ignore[operator]
        raise misdeclared(f"axis {axis} of dims is {dim!r}; it must be a Dim or an int of at least 1")


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
