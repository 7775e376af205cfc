"""What is said of a model that breaks a promise: where, by how much, which input and dimension, and what to change.

The input and dimension at fault are found by changing the padding of one input along one dimension at a time: does an
answer change?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool.dtypes import INT_RANGES
from warmpool.manifest import TensorSpec, bucket_name
from warmpool.publishing.compare import Difference, same_bits
from warmpool.publishing.points import Sizes
from warmpool.publishing.subject import Case, Row, Subject, Tensors
from warmpool.publishing.values import Fill, content, generator_of, is_mask

Run = Callable[[Tensors], Tensors]
Changes = Callable[[Tensors], bool]

_ROUNDING_FACTOR = 100.0  # a miss by less than this many tolerances may be rounding
# What is tried in a place. A mask's garbage may happen to be what was there.
_NUMBERS: tuple[Fill, ...] = ("written", "garbage", "garbage", "garbage")
_NOT_FINITE: tuple[Fill, ...] = ("NaN", "infinity")


def padded_dims(bucket: Sizes, row: Row) -> list[str]:
    """The dimensions along which a row is padded."""
    return [name for name, size in row.point.items() if size < bucket[name]]


@dataclass(frozen=True, slots=True)
class Leak:
    """An input whose padding along a dimension reaches an answer: by numbers, or by nothing but what is not finite."""

    tensor: TensorSpec
    dim: str
    numbers: bool

    def __str__(self) -> str:
        return f"{self.tensor.name!r} along dimension {self.dim!r}"


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that differs from its reference; or, `moved`, from itself beside what an instance writes."""

    subject: Subject
    bucket: Sizes
    case: Case
    index: int
    output: int
    difference: Difference
    moved: bool = False

    @property
    def _row(self) -> Row:
        return self.case.rows[self.index]

    def explained(self, run: Run, inputs: Tensors) -> str:
        """The verdict in words.

        Args:
            run: Runs the executable.
            inputs: Those of the case.
        """
        if self.case.fill in _NOT_FINITE:  # beside NaN in another place no change would show
            inputs = self.subject.padded(self.bucket, replace(self.case, fill="garbage"))
        changes = self._changes(run, inputs)
        if leaks := self._leaks(inputs, changes, corners=False) or self._leaks(inputs, changes, corners=True):
            return f"{self._where()}: {self._padding_leak(leaks)}"
        if neighbours := self._leaking_neighbours(inputs, changes):
            names = " and ".join(repr(name) for name in neighbours)
            return (
                f"{self._where()}: what other rows hold in input {names} reaches this one along dimension "
                f"{self.subject.batch!r}; compute every row by itself"
            )
        return f"{self._where()}: {self._without_a_leak()}"

    def _changes(self, run: Run, inputs: Tensors) -> Changes:
        """Whether other inputs than these give this row another answer."""
        before = self._answer(run(inputs))

        def changes(changed: Tensors) -> bool:
            return not same_bits(before, self._answer(run(changed)))

        return changes

    def _answer(self, outputs: Tensors) -> NDArray[Any]:
        return self.subject.cut(outputs, self.index, self._row)[self.output]

    def _where(self) -> str:
        output = self.subject.spec.outputs[self.output]
        exact = f" at {bucket_name(self._row.point)}" if self._row.point else ""
        place = f"output {output.name!r}{exact} in bucket {bucket_name(dict(self.bucket))}"
        whole = output.dtype == "bool" or output.dtype in INT_RANGES
        amount = f"{self.difference.error_max:.3g}"
        if not (whole or np.isfinite(self.difference.excess)):
            amount = "more than any tolerance"
        if self.moved:
            return f"{place} changes by {amount} with what has to be ignored"
        tolerance = self.subject.tolerance
        allowed = (
            f"{output.dtype} has to be equal"
            if whole
            else f"allowed: {tolerance.atol:g} + {tolerance.rtol:g} of the value"
        )
        return f"{place} differs from the exact shape by {amount} ({allowed})"

    def _leaks(self, inputs: Tensors, changes: Changes, *, corners: bool) -> list[Leak]:
        """Where padding of this row changes its answer.

        A mask with a declared pad is not asked: that its padding matters is its purpose. What is not finite is tried
        where no pad is declared, for nowhere else it may lie.

        Args:
            inputs: What has the answer that may change.
            changes: Whether it does.
            corners: Whether padding counts that is padding along another dimension too.
        """
        found = []
        for dim in padded_dims(self.bucket, self._row):
            for number, tensor in enumerate(self.subject.spec.inputs):
                if dim not in tensor.shape or (is_mask(tensor) and tensor.pad is not None):
                    continue
                region = self._region(tensor, dim, corners=corners)
                tries = _NUMBERS if tensor.pad is not None else _NUMBERS + _NOT_FINITE
                changed = _changed(inputs, number, tensor, region, tries)
                if (first := next((fill for fill, one in changed if changes(one)), None)) is not None:
                    found.append(Leak(tensor, dim, numbers=first in _NUMBERS))
        return found

    def _region(self, tensor: TensorSpec, dim: str, *, corners: bool) -> tuple[slice, ...]:
        """The padding of an input along one of its dimensions, as an index into it."""
        shared = self.subject.batch is None or self.subject.is_shared(tensor)
        index = []
        for axis in tensor.shape:
            if axis == self.subject.batch:
                index.append(slice(None) if shared else slice(self.index, self.index + 1))
            elif axis == dim:
                index.append(slice(self._row.point[dim], None))
            else:
                index.append(slice(None) if corners or isinstance(axis, int) else slice(self._row.point[axis]))
        return tuple(index)

    def _leaking_neighbours(self, inputs: Tensors, changes: Changes) -> list[str]:
        """The inputs whose content in other rows changes the answer."""
        batch = self.subject.batch
        if batch is None or self.bucket[batch] == 1:
            return []
        others = (np.arange(self.bucket[batch]) != self.index,)
        return [
            tensor.name
            for number, tensor in enumerate(self.subject.spec.inputs)
            if not self.subject.is_shared(tensor)
            and any(changes(one) for _, one in _changed(inputs, number, tensor, others, _NUMBERS + _NOT_FINITE))
        ]

    def _padding_leak(self, leaks: Sequence[Leak]) -> str:
        places = " and ".join(f"of input {leak}" for leak in leaks)
        undeclared = next((leak.tensor.name for leak in leaks if leak.tensor.pad is None), None)
        numbers = any(leak.numbers for leak in leaks)
        how = "mask it in the method" if numbers else "select what is valid, as jnp.where does: NaN times 0 is NaN"
        how = f"{undeclared!r} declares no pad: {how}" if undeclared else f"{how}, such as by a LengthMask"
        what = "the padding" if numbers else "NaN or infinity in the padding"
        change = f"{how}, or declare a pad, or bounds, with which it changes nothing"
        return f"{what} {places} reaches it{self._rounding()}; {change}"

    def _without_a_leak(self) -> str:
        dims = padded_dims(self.bucket, self._row)
        names = " and ".join(repr(name) for name in dims)
        if dims:
            cause = f"the padded size of dimension {names} itself reaches it, as in a mean or a count over it"
        elif self.subject.batch and self.bucket[self.subject.batch] > 1:
            cause = f"the size of dimension {self.subject.batch!r} itself reaches it, as in a mean or a count over it"
        else:
            cause = "nothing is padded or merged, so the executable disagrees with plain JAX"
        return f"{cause}{self._rounding()}"

    def _rounding(self) -> str:
        close = self.difference.excess <= _ROUNDING_FACTOR and not self.moved
        return " (if it is mere rounding, raise the model's tolerance)" if close else ""


def _changed(
    inputs: Tensors, number: int, tensor: TensorSpec, region: tuple[Any, ...], tries: Sequence[Fill]
) -> Iterator[tuple[Fill, Tensors]]:
    """The inputs with other legal content in one region of one of them."""
    for turn, fill in enumerate(tries):
        array = inputs[number].copy()
        array[region] = content(tensor, fill, array[region].shape, generator_of("changed", tensor.name, str(turn)))
        yield fill, [array if other == number else given for other, given in enumerate(inputs)]
