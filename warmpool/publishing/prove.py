"""What a proof compares, and what it says when a model breaks a promise.

An instance pads requests and merges them. So before anything is published, every executable has to answer a padded,
merged batch as plain JAX answers each of its rows alone at the exact shape. When it does not, the input and dimension
at fault are found by changing the padding of one input along one dimension at a time: does an answer change?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from warmpool.dtypes import INT_RANGES
from warmpool.manifest import ProofSpec, TensorSpec, bucket_name
from warmpool.publishing.compare import Difference, difference, same_bits
from warmpool.publishing.subject import (
    VARIANTS,
    Case,
    Row,
    Sizes,
    Subject,
    Tensors,
    garbage,
    generator_of,
    is_mask,
    not_finite,
    unbounded_values,
)

Kind = Literal["platforms", "padding", "batching"]
Run = Callable[[Tensors], Tensors]

_ROUNDING_FACTOR = 100.0  # a miss by less than this many tolerances may be rounding
_TRIES = ("1", "2", "3")  # a mask's garbage may happen to be what was there


@dataclass(slots=True)
class Tally:
    """Comparisons that went well, by what they prove."""

    cases: dict[str, int] = field(default_factory=dict)
    error_max: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, cases: int, error_max: float) -> None:
        self.cases[kind] = self.cases.get(kind, 0) + cases
        self.error_max[kind] = max(self.error_max.get(kind, 0.0), error_max)

    def proofs(self, method: str) -> list[ProofSpec]:
        return [
            ProofSpec(method=method, kind=kind, cases=cases, error_max=self.error_max[kind])
            for kind, cases in sorted(self.cases.items())
        ]


References = Callable[[Row], Tensors]


def prove(
    subject: Subject,
    bucket: Sizes,
    points: Sequence[dict[str, int]],
    run: Run,
    references: References,
    *,
    stored: bool = False,
) -> tuple[Tally, str | None]:
    """Run a bucket's cases and compare every row.

    Args:
        subject: The method.
        bucket: The executable's bucket.
        points: The exact shapes to prove it at.
        run: Runs it on inputs of the bucket's shape.
        references: A row's outputs at its exact shape and batch size 1.
        stored: Whether the references are stored executables rather than plain JAX.

    Returns:
        The comparisons made, and what is wrong, None if nothing is.
    """
    tally = Tally()
    for case in subject.cases(bucket, points):
        inputs = subject.padded(bucket, case)
        outputs = run(inputs)
        for index, row in enumerate(case.rows):
            wanted = references(row)
            found = subject.cut(outputs, index, row)
            differences = [difference(got, want, subject.tolerance) for got, want in zip(found, wanted, strict=True)]
            bad = next((number for number, one in enumerate(differences) if not one.within), None)
            if bad is not None:
                broken = Broken(subject, bucket, case, index, bad, differences[bad])
                return tally, broken.explained(run, inputs)
            error_max = max((one.error_max for one in differences), default=0.0)
            for kind in kinds_of(subject, bucket, row, stored=stored):
                tally.add(kind, 1, error_max)
        if case.fill == "garbage" and (moved := _moved(subject, bucket, case, run, inputs, outputs)):
            return tally, moved.explained(run, inputs)
    return tally, None


def unfaithful(subject: Subject, point: dict[str, int], author: Run, references: References) -> str | None:
    """What is wrong where an exported program does not answer as the author's function, None if nothing is."""
    for variant in range(VARIANTS):
        row = Row(point, variant)
        for spec, got, want in zip(subject.spec.outputs, references(row), author(subject.exact(row)), strict=True):
            found = difference(got, want, subject.tolerance)
            if not found.within:
                at = bucket_name(subject.exact_sizes(point))
                return (
                    f"output {spec.name!r} at {at} of its exported program differs from the function's own under "
                    f"jax.jit by {found.error_max:.3g}; let the function depend on its params and inputs only"
                )
    return None


def _moved(subject: Subject, bucket: Sizes, case: Case, run: Run, inputs: Tensors, outputs: Tensors) -> Broken | None:
    """The row whose answer is another one beside other garbage: no tolerance is for that, and it needs no reference."""
    other = subject.padded(bucket, replace(case, fill="other garbage"))
    if all(map(same_bits, inputs, other)):
        return None
    changed = run(other)
    for index, row in enumerate(case.rows):
        before, after = (subject.cut(one, index, row) for one in (outputs, changed))
        for number, (one, two) in enumerate(zip(before, after, strict=True)):
            if not same_bits(one, two) and same_bits(one, subject.cut(run(inputs), index, row)[number]):
                return Broken(subject, bucket, case, index, number, difference(two, one, subject.tolerance), moved=True)
    return None


def kinds_of(subject: Subject, bucket: Sizes, row: Row, *, stored: bool) -> list[Kind]:
    """What the comparison of one row proves."""
    kinds: list[Kind] = [] if stored else ["platforms"]
    if padded_dims(bucket, row):
        kinds.append("padding")
    if subject.batch and bucket[subject.batch] > 1:
        kinds.append("batching")
    return kinds


def padded_dims(bucket: Sizes, row: Row) -> list[str]:
    """The dimensions along which a row is padded."""
    return [name for name, size in row.point.items() if size < bucket[name]]


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that differs from its reference, or from itself."""

    subject: Subject
    bucket: Sizes
    case: Case
    index: int
    output: int
    difference: Difference
    moved: bool = False  # differs from itself, beside other garbage

    def explained(self, run: Run, inputs: Tensors) -> str:
        """The verdict in words: where, by how much, which input and dimension, and what to change."""
        changes = self._changes(run, inputs)
        dims = padded_dims(self.bucket, self.case.rows[self.index])
        leaks = [(name, dim) for dim in dims for name in self._leaking(inputs, dim, changes)]
        if leaks:
            return f"{self._where()}: {self._padding_leak(leaks)}"
        if neighbours := self._leaking_neighbours(run, inputs):
            names = " and ".join(repr(name) for name in neighbours)
            return (
                f"{self._where()}: what other rows hold in input {names} reaches this one along dimension "
                f"{self.subject.batch!r}; compute every row by itself"
            )
        return f"{self._where()}: {self._without_a_leak(dims)}"

    def _changes(self, run: Run, inputs: Tensors) -> Callable[[Tensors], bool]:
        """Whether other inputs than these give this row another answer."""
        row = self.case.rows[self.index]
        before = self.subject.cut(run(inputs), self.index, row)[self.output]

        def changes(changed: Tensors) -> bool:
            after = self.subject.cut(run(changed), self.index, row)[self.output]
            return not same_bits(before, after)

        return changes

    def _where(self) -> str:
        row = self.case.rows[self.index]
        output = self.subject.spec.outputs[self.output]
        exact = f" at {bucket_name(row.point)}" if row.point else ""
        place = f"output {output.name!r}{exact} in bucket {bucket_name(dict(self.bucket))}"
        if self.moved:
            return f"{place} changes by {self.difference.error_max:.3g} with what has to be ignored"
        whole = output.dtype == "bool" or output.dtype in INT_RANGES
        amount = f"{self.difference.error_max:.3g}"
        if not (whole or np.isfinite(self.difference.excess)):
            amount = "more than any tolerance"
        tolerance = self.subject.tolerance
        allowed = (
            f"{output.dtype} has to be equal"
            if whole
            else f"allowed: {tolerance.atol:g} + {tolerance.rtol:g} of the value"
        )
        return f"{place} differs from the exact shape by {amount} ({allowed})"

    def _leaking(self, inputs: Tensors, dim: str, changes: Callable[[Tensors], bool]) -> list[str]:
        """The inputs whose padding along one dimension, in this row, changes the answer.

        A mask with a declared pad is not asked: that its padding matters is its purpose.
        """
        size = self.case.rows[self.index].point[dim]
        found = []
        for number, tensor in enumerate(self.subject.spec.inputs):
            purposeful = is_mask(tensor) and tensor.pad is not None
            region = None if purposeful else self._region(tensor, dim, size)
            if region and any(changes(_changed(inputs, number, tensor, region, attempt)) for attempt in _TRIES):
                found.append(tensor.name)
        return found

    def _region(self, tensor: TensorSpec, dim: str, size: int) -> tuple[Any, ...] | None:
        """The padding of an input along one dimension: an index into it, None if it does not have the dimension."""
        if dim not in tensor.shape:
            return None
        point = self.case.rows[self.index].point
        shared = self.subject.batch is None or self.subject.is_shared(tensor)
        index: list[Any] = []
        for axis in tensor.shape:
            if axis == self.subject.batch:
                index.append(slice(None) if shared else slice(self.index, self.index + 1))
            elif axis == dim:
                index.append(slice(size, None))
            else:
                index.append(slice(point.get(axis)) if isinstance(axis, str) else slice(None))
        return tuple(index)

    def _leaking_neighbours(self, run: Run, inputs: Tensors) -> list[str]:
        """The inputs whose content in other rows changes the answer."""
        batch = self.subject.batch
        if batch is None or self.bucket[batch] == 1:
            return []
        others = (np.arange(self.bucket[batch]) != self.index,)
        own = [
            (number, tensor)
            for number, tensor in enumerate(self.subject.spec.inputs)
            if not self.subject.is_shared(tensor)
        ]
        for number, tensor in own:  # beside NaN in another input no change would show
            inputs = _changed(inputs, number, tensor, others, "finite")
        changes = self._changes(run, inputs)
        return [
            tensor.name
            for number, tensor in own
            if any(changes(_changed(inputs, number, tensor, others, attempt)) for attempt in (*_TRIES, "not finite"))
        ]

    def _padding_leak(self, leaks: Sequence[tuple[str, str]]) -> str:
        inputs = {tensor.name: tensor for tensor in self.subject.spec.inputs}
        places = " and ".join(f"of input {name!r} along dimension {dim!r}" for name, dim in leaks)
        undeclared = [name for name, _ in leaks if inputs[name].pad is None]
        if undeclared:
            change = f"{undeclared[0]!r} declares no pad: mask it in the method, or declare a pad that changes nothing"
        else:
            change = (
                "mask it in the method, such as by an input of ones with pad=0, or declare a pad that changes nothing"
            )
        return f"the padding {places} reaches it{self._rounding()}; {change}"

    def _without_a_leak(self, dims: Sequence[str]) -> str:
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


def _changed(inputs: Tensors, number: int, tensor: TensorSpec, region: tuple[Any, ...], attempt: str) -> Tensors:
    """The inputs with other legal content in one region of one of them."""
    array = inputs[number].copy()
    fill = not_finite if attempt == "not finite" and unbounded_values(tensor) else garbage
    array[region] = fill(tensor, array[region].shape, generator_of("changed", tensor.name, attempt))
    return [array if other == number else given for other, given in enumerate(inputs)]


def merged(proofs: Sequence[ProofSpec]) -> tuple[ProofSpec, ...]:
    """Proofs of one target, one record for each method and kind."""
    tallies: dict[str, Tally] = {}
    for proof in proofs:
        tallies.setdefault(proof.method, Tally()).add(proof.kind, proof.cases, proof.error_max)
    return tuple(record for method, tally in tallies.items() for record in tally.proofs(method))
