"""How an author declares inputs: named dimensions, tensors over them, and masks that say how long a row is.

Importing this file loads neither jax nor numpy, so a declaration can be read and checked anywhere.
"""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import dataclass
from itertools import pairwise

from warmpool.dtypes import Scalar, dtype_problem, is_int, value_problem
from warmpool.errors import DeclarationError

SIZES_MAX = 64

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
        check_name(NAME, "dimension", self.name)
        if self.name in _SYMBOLIC_WORDS:
            raise misdeclared("this word has a meaning in shape expressions; choose another name", dimension=self.name)
        if not is_int(self.max) or self.max < 1:
            raise misdeclared(f"max is {self.max!r}; it must be an int of at least 1", dimension=self.name)
        if not _are_ints(self.sizes):
            raise misdeclared(f"sizes is {self.sizes!r}; it must be a tuple of ints", dimension=self.name)
        object.__setattr__(self, "sizes", tuple(self.sizes) or powers_of_two(self.max))
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
            padding, which publishing proves with garbage, and with NaN and infinity as far as the bounds let a caller
            send them; zeros are written.
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


@dataclass(frozen=True, slots=True, init=False)
class LengthMask(Tensor):
    """An input that says how long each row is along a dimension: 1 at its valid positions, 0 in its padding.

    Its shape is (batch, dim) in a method that has a batch dimension, else (dim,), and its pad is 0. A caller may leave
    it out: it is then 1 wherever that caller sent something, and 0 where its rows are padded to share a bucket with
    others. Who sends rows of different lengths, padded already, sends the mask too.

    Args:
        dim: The dimension; another input has to have it.
        dtype: One of `warmpool.dtypes.DTYPES`; with bool 1 and 0 are True and False.
        batch: The batch dimension, which `Model` puts in where a method has one.
    """

    def __init__(self, dim: Dim, dtype: str = "int32", *, batch: Dim | None = None) -> None:
        if not isinstance(dim, Dim):
            raise misdeclared(f"a length mask is for a Dim, and not for {dim!r}")
        if dim.batch:
            raise misdeclared("a length mask is for the dimension that rows are long in", dimension=dim.name)
        dims = (dim,) if batch is None else (batch, dim)
        if dtype == "bool":
            Tensor.__init__(self, dtype, dims, pad=False)
        else:
            Tensor.__init__(self, dtype, dims, pad=0, low=0, high=1)

    @property
    def dim(self) -> Dim:
        """The dimension along which rows are as long as it says."""
        (*_, dim) = self.named
        return dim


def powers_of_two(maximum: int) -> tuple[int, ...]:
    """Those below a size, and that: the bucket sizes of a dimension for which none are declared."""
    return (*(2**exponent for exponent in range((maximum - 1).bit_length())), maximum)


def _are_ints(values: object) -> bool:
    return isinstance(values, tuple | list) and all(is_int(value) for value in values)


def check_name(pattern: re.Pattern[str], kind: str, name: object, **where: str | None) -> None:
    """Raises DeclarationError for a name that does not match."""
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise misdeclared(f"{kind} name {name!r} is not allowed; use a name that matches {pattern.pattern}", **where)


def _check_axis(axis: int, dim: object) -> None:
    if isinstance(dim, Dim):
        if dim.batch and axis != 0:
            problem = f"a batch dimension must be axis 0, not axis {axis}; transpose the input"
            raise misdeclared(problem, dimension=dim.name)
    elif not is_int(dim) or dim < 1:  # type: ignore[operator]
        raise misdeclared(f"axis {axis} of dims is {dim!r}; it must be a Dim or an int of at least 1")
