"""How an author declares a model.

Importing this file loads neither jax nor numpy, so a declaration can be read and checked anywhere. Whatever can be known from the
declaration alone is checked when it is constructed; what needs a trace is checked by `warmpool.export`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmpool.errors import DeclarationError

Scalar = bool | int | float

DIMS_MAX = 8
SIZES_MAX = 64

_MODEL_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_SYMBOLIC_WORDS = {"max", "min", "mod", "floordiv", "not", "and", "or", "if", "else", "for", "in", "is"}

_INT_RANGES: dict[str, tuple[int, int]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
}
_FLOAT_MAX: dict[str, float] = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep+127"),
    "float32": float.fromhex("0x1.fffffep+127"),
}
DTYPES = ("bool", *_INT_RANGES, *_FLOAT_MAX)
_NARROWER = {
    "int64": "int32",
    "uint64": "uint32",
    "float64": "float32",
    "complex128": "float32",
    "int": "int32",
    "float": "float32",
}


def _fail(problem: str, **where: str | None) -> DeclarationError:
    """A DeclarationError whose message begins with the place: "model 'embed', input 'x': ..."."""
    place = ", ".join(f"{kind} {name!r}" for kind, name in where.items() if name is not None)
    return DeclarationError(f"{place}: {problem}" if place else problem)


def _check_name(pattern: re.Pattern[str], kind: str, name: object, **where: str | None) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise _fail(f"{kind} name {name!r} is not allowed; use a name that matches {pattern.pattern}", **where)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _powers_of_two(maximum: int) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range((maximum - 1).bit_length())) + (maximum,)


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension of inputs.

    Attributes:
        name: Used in messages, bucket names and output shapes.
        max: The largest size a caller may send.
        sizes: Bucket sizes, ascending; by default the powers of two below `max`, and `max`. The last one is `max`, except for a
            batch dimension: requests with more rows than the largest size are split.
        batch: Rows of different requests may be merged along this dimension. At most one a model, always axis 0.
    """

    name: str
    max: int
    sizes: tuple[int, ...] = ()
    batch: bool = False

    def __post_init__(self) -> None:
        _check_name(_NAME, "dimension", self.name)
        if self.name in _SYMBOLIC_WORDS:
            raise _fail("this word has a meaning in shape expressions; choose another name", dimension=self.name)
        if not _is_int(self.max) or self.max < 1:
            raise _fail(f"max is {self.max!r}; it must be an int of at least 1", dimension=self.name)
        if not isinstance(self.sizes, tuple | list) or not all(_is_int(size) for size in self.sizes):
            raise _fail(f"sizes is {self.sizes!r}; it must be a tuple of ints", dimension=self.name)
        object.__setattr__(self, "sizes", tuple(self.sizes) or _powers_of_two(self.max))
        self._check_sizes()

    def _check_sizes(self) -> None:
        if any(size < 1 for size in self.sizes):
            raise _fail(f"sizes {self.sizes} must all be at least 1", dimension=self.name)
        if any(low >= high for low, high in zip(self.sizes, self.sizes[1:], strict=False)):
            raise _fail(f"sizes {self.sizes} must ascend, each only once", dimension=self.name)
        if len(self.sizes) > SIZES_MAX:
            raise _fail(f"{len(self.sizes)} sizes; at most {SIZES_MAX} are allowed", dimension=self.name)
        last = self.sizes[-1]
        if last > self.max:
            raise _fail(
                f"the last size {last} is above max={self.max}; raise max or drop the size", dimension=self.name
            )
        if last != self.max and not self.batch:
            raise _fail(
                f"the last size is {last}, so a request up to max={self.max} would fit no bucket; add {self.max} to sizes or "
                f"set max={last}",
                dimension=self.name,
            )


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input: a dtype and its axes.

    Attributes:
        dtype: numpy's name; one of `DTYPES`.
        dims: A `Dim` for a named axis, an int for a fixed one.
        pad: What padding is filled with, where the method relies on it. None: the method ignores what is in the padding, which
            publishing proves with garbage; zeros are written.
        low: Smallest allowed value, inclusive; None for no bound.
        high: Largest allowed value, inclusive; None for no bound.
    """

    dtype: str
    dims: tuple[Dim | int, ...]
    pad: Scalar | None = None
    low: Scalar | None = None
    high: Scalar | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise _fail(self._dtype_problem())
        if not isinstance(self.dims, tuple | list):
            raise _fail(f"dims is {self.dims!r}; it must be a tuple of Dim and int, such as (batch, 64)")
        object.__setattr__(self, "dims", tuple(self.dims))
        for axis, dim in enumerate(self.dims):
            self._check_axis(axis, dim)
        for name, value in (("pad", self.pad), ("low", self.low), ("high", self.high)):
            if value is not None:
                self._check_value(name, value)
        self._check_order()

    def _dtype_problem(self) -> str:
        if isinstance(self.dtype, str) and self.dtype in _NARROWER:
            return f"dtype {self.dtype!r} is not allowed: JAX computes in 32 bits by default; use {_NARROWER[self.dtype]!r}"
        return f"dtype {self.dtype!r} is not allowed; use one of {', '.join(DTYPES)}"

    def _check_axis(self, axis: int, dim: object) -> None:
        if isinstance(dim, Dim):
            if dim.batch and axis != 0:
                raise _fail(
                    f"a batch dimension must be axis 0, not axis {axis}; transpose the input", dimension=dim.name
                )
        elif not _is_int(dim) or dim < 1:  # type: ignore[operator]
            raise _fail(f"axis {axis} of dims is {dim!r}; it must be a Dim or an int of at least 1")

    def _check_value(self, name: str, value: Scalar) -> None:
        if self.dtype == "bool":
            if name != "pad" or not isinstance(value, bool):
                raise _fail(
                    f"{name}={value!r} is not allowed for bool; pad may be True or False, low and high have no meaning"
                )
        elif self.dtype in _INT_RANGES:
            lowest, highest = _INT_RANGES[self.dtype]
            if not _is_int(value) or not lowest <= value <= highest:
                raise _fail(
                    f"{name}={value!r} is not representable in {self.dtype}; use an int from {lowest} to {highest}"
                )
        else:
            largest = _FLOAT_MAX[self.dtype]
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= largest:
                raise _fail(
                    f"{name}={value!r} is not representable in {self.dtype}; use a finite number up to {largest:g} in size"
                )

    def _check_order(self) -> None:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if low > high:
            raise _fail(f"low={self.low} is above high={self.high}; swap them")
        if self.pad is not None and not low <= self.pad <= high:
            raise _fail(f"pad={self.pad} is outside low={self.low} to high={self.high}; choose a pad within the bounds")

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
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise _fail(f"tolerance {name}={value!r}; it must be a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class Model:
    """A model: named methods over shared params.

    After construction every value of `methods` is a `Method` whose inputs are set.

    Attributes:
        name: Matches `[a-z][a-z0-9-]{0,62}`.
        methods: Name to a function `f(params, **inputs)`, or to a `Method`. A function returns a tensor or a dict of tensors.
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
        _check_name(_MODEL_NAME, "model", self.name)
        if not isinstance(self.tolerance, Tolerance):
            raise _fail(f"tolerance is {self.tolerance!r}; use Tolerance(rtol=..., atol=...)", model=self.name)
        if isinstance(self.params, str):
            raise _fail(
                f"params is the text {self.params!r}; for a checkpoint folder use pathlib.Path", model=self.name
            )
        if not isinstance(self.methods, Mapping) or not self.methods:
            raise _fail("methods is empty; declare at least one, such as methods={'predict': predict}", model=self.name)
        object.__setattr__(self, "methods", {name: self._resolve(name, given) for name, given in self.methods.items()})
        self._check_dims()

    def _resolve(self, name: str, given: Callable[..., Any] | Method) -> Method:
        _check_name(_NAME, "method", name, model=self.name)
        method = given if isinstance(given, Method) else Method(given)
        if not callable(method.function):
            raise _fail(
                f"{method.function!r} cannot be called; give a function f(params, **inputs)",
                model=self.name,
                method=name,
            )
        inputs = self.inputs if method.inputs is None else method.inputs
        if not isinstance(inputs, Mapping) or not inputs:
            raise _fail(
                "no inputs; declare inputs={'name': Tensor(...)} on the model or the method",
                model=self.name,
                method=name,
            )
        for key, tensor in inputs.items():
            _check_name(_NAME, "input", key, model=self.name, method=name)
            if not isinstance(tensor, Tensor):
                raise _fail(
                    f"{tensor!r} is not a Tensor; use Tensor(dtype, dims)", model=self.name, method=name, input=key
                )
        _check_signature(method.function, inputs, model=self.name, method=name)
        return Method(method.function, dict(inputs))

    def _check_dims(self) -> None:
        seen: dict[str, Dim] = {}
        for method_name in self.methods:
            for input_name, tensor in self.method_inputs(method_name).items():
                for dim in tensor.named:
                    where = {"model": self.name, "method": method_name, "input": input_name, "dimension": dim.name}
                    if seen.setdefault(dim.name, dim) != dim:
                        raise _fail(
                            f"defined twice, as {seen[dim.name]} and as {dim}; define it once and use that object, or rename one",
                            **where,
                        )
        batches = [name for name, dim in seen.items() if dim.batch]
        if len(batches) > 1:
            raise _fail(
                f"{len(batches)} batch dimensions ({', '.join(batches)}); keep batch=True on one", model=self.name
            )
        if len(seen) > DIMS_MAX:
            raise _fail(f"{len(seen)} named dimensions; at most {DIMS_MAX} are allowed", model=self.name)

    def method_inputs(self, method: str) -> Mapping[str, Tensor]:
        """The inputs of a method, by name, in declared order."""
        declared = self.methods[method]
        assert isinstance(declared, Method)
        assert declared.inputs is not None
        return declared.inputs

    def method_dims(self, method: str) -> tuple[Dim, ...]:
        """The named dimensions a method's inputs use: the batch dimension first, then in order of appearance."""
        found = dict.fromkeys(dim for tensor in self.method_inputs(method).values() for dim in tensor.named)
        return tuple(sorted(found, key=lambda dim: not dim.batch))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The named dimensions of all methods: the batch dimension first, then in order of appearance."""
        found = dict.fromkeys(dim for method in self.methods for dim in self.method_dims(method))
        return tuple(sorted(found, key=lambda dim: not dim.batch))

    @property
    def default_method(self) -> str:
        """The method of a request that names none: "predict" where there is one, else the first."""
        return "predict" if "predict" in self.methods else next(iter(self.methods))


def _check_signature(function: Callable[..., Any], inputs: Mapping[str, Tensor], *, model: str, method: str) -> None:
    """Checks that `function` can be called as `function(params, **inputs)`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # a callable written in C has no signature to check; tracing it will tell
    wanted = f"f(params, {', '.join(inputs)})"
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if not parameters or parameters[0].kind not in positional or parameters[0].name in inputs:
        got = parameters[0].name if parameters else "nothing"
        raise _fail(
            f"the first parameter must be params, but is {got}; write it as {wanted}", model=model, method=method
        )
    by_name = {parameter.name: parameter for parameter in parameters[1:]}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for name in inputs:
        named = name in by_name and by_name[name].kind is not inspect.Parameter.POSITIONAL_ONLY
        if not named and not takes_any:
            raise _fail(
                f"the function has no parameter {name!r}; write it as {wanted}", model=model, method=method, input=name
            )
    variadic = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    for parameter in by_name.values():
        if (
            parameter.name not in inputs
            and parameter.kind not in variadic
            and parameter.default is inspect.Parameter.empty
        ):
            raise _fail(
                f"the function's parameter {parameter.name!r} is no declared input; declare it in inputs or give it a default",
                model=model,
                method=method,
            )
