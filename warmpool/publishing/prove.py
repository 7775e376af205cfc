"""What a proof compares: every executable has to answer a padded, merged batch as plain JAX answers each row alone.

An instance pads requests and merges them. So before anything is published, each answer is held against the one at the
exact shape, and against the same executable's beside other content in every place that the method has to ignore: to
the bit, since no tolerance is for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from warmpool.manifest import ProofSpec, bucket_name
from warmpool.publishing.compare import difference, same_bits
from warmpool.publishing.points import Point, Sizes
from warmpool.publishing.subject import VARIANTS, Case, Row, Rows, Subject, Tensors
from warmpool.publishing.values import Fill
from warmpool.publishing.verdict import Broken, Run, padded_dims

Kind = Literal["platforms", "padding", "batching", "lanes"]
References = Callable[[Row], Tensors]


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


def prove(
    subject: Subject, bucket: Sizes, points: Sequence[Point], run: Run, references: References, *, stored: bool = False
) -> tuple[Tally, str | None]:
    """Run a bucket's batches, each beside all that may lie in its padding, and compare every row.

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
    proof = _Proof(subject, bucket, run, references, stored)
    wrong = (proof.of_batch(rows, fills) for rows, fills in subject.batches(bucket, points))
    return proof.tally, next((one for one in wrong if one), None)


@dataclass(frozen=True, slots=True)
class _Proof:
    """A proof under way."""

    subject: Subject
    bucket: Sizes
    run: Run
    references: References
    stored: bool
    tally: Tally = field(default_factory=Tally)

    def of_batch(self, rows: Rows, fills: Sequence[Fill]) -> str | None:
        """What is wrong with the answers to these rows, as they are written and beside these fills; None if nothing."""
        case = Case(rows, "written")
        inputs = self.subject.padded(self.bucket, case)
        outputs = self.run(inputs)
        if broken := self._against_references(case, outputs):
            return broken.explained(self.run, inputs)
        for fill in fills:
            case = Case(rows, fill)
            filled = self.subject.padded(self.bucket, case)
            if all(map(same_bits, inputs, filled)):
                continue  # nothing has to be ignored, or nothing of this kind may lie there
            found = self.run(filled)
            if broken := self._against_references(case, found) or self._moved(case, inputs, outputs, found):
                return broken.explained(self.run, filled)
        return None

    def _against_references(self, case: Case, outputs: Tensors) -> Broken | None:
        for index, row in enumerate(case.rows):
            found = self.subject.cut(outputs, index, row)
            pairs = zip(found, self.references(row), strict=True)
            differences = [difference(got, want, self.subject.tolerance) for got, want in pairs]
            bad = next((number for number, one in enumerate(differences) if not one.within), None)
            if bad is not None:
                return Broken(self.subject, self.bucket, case, index, bad, differences[bad])
            error_max = max((one.error_max for one in differences), default=0.0)
            for kind in kinds_of(self.subject, self.bucket, row, stored=self.stored):
                self.tally.add(kind, 1, error_max)
        return None

    def _moved(self, case: Case, inputs: Tensors, outputs: Tensors, found: Tensors) -> Broken | None:
        """The first row that is not answered as it was beside what an instance writes: `outputs`, of `inputs`.

        An executable that gives the same inputs other bits the next time is held to none.
        """
        for index, row in enumerate(case.rows):
            before, after = (self.subject.cut(one, index, row) for one in (outputs, found))
            for number, (one, two) in enumerate(zip(before, after, strict=True)):
                if not same_bits(one, two):
                    amount = difference(two, one, self.subject.tolerance)
                    broken = Broken(self.subject, self.bucket, case, index, number, amount, moved=True)
                    return broken if all(map(same_bits, outputs, self.run(inputs))) else None
        return None


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


def alike(
    subject: Subject, bucket: Sizes, points: Sequence[Point], run: Run, others: Callable[[int], Tensors]
) -> tuple[Tally, str | None]:
    """Compare the answers of a bucket's executable in one lane with those of the other lane's, row by row.

    Args:
        subject: The method.
        bucket: Their bucket.
        points: The exact shapes of the batches.
        run: Runs the one.
        others: What the other answered to a batch, by its number: whole outputs.

    Returns:
        The comparisons made, and what is wrong, None if nothing is.
    """
    tally = Tally()
    for number, (rows, _) in enumerate(subject.batches(bucket, points)):
        outputs, theirs = run(subject.padded(bucket, Case(rows, "written"))), others(number)
        for index, row in enumerate(rows):
            pairs = zip(subject.cut(outputs, index, row), subject.cut(theirs, index, row), strict=True)
            for spec, (one, other) in zip(subject.spec.outputs, pairs, strict=True):
                found = difference(one, other, subject.tolerance)
                tally.add("lanes", 1, found.error_max)
                if not found.within:
                    at = f"at {bucket_name(row.point)} in bucket {bucket_name(dict(bucket))}"
                    return tally, f"output {spec.name!r} {at} differs between the lanes by {found.error_max:.3g}"
    return tally, None


def kinds_of(subject: Subject, bucket: Sizes, row: Row, *, stored: bool) -> list[Kind]:
    """What the comparison of one row proves."""
    kinds: list[Kind] = [] if stored else ["platforms"]
    if padded_dims(bucket, row):
        kinds.append("padding")
    if subject.batch and bucket[subject.batch] > 1:
        kinds.append("batching")
    return kinds


def merged(proofs: Sequence[ProofSpec]) -> tuple[ProofSpec, ...]:
    """Proofs of one target, one record for each method and kind."""
    tallies: dict[str, Tally] = {}
    for proof in proofs:
        tallies.setdefault(proof.method, Tally()).add(proof.kind, proof.cases, proof.error_max)
    return tuple(record for method, tally in tallies.items() for record in tally.proofs(method))
