"""The children's work for one target: compiles, references and trials, each begun once, waited for where needed.

Compiles and references run beside each other. A trial runs alone, because its run time goes into the cost table.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from warmpool.errors import ProofFailed
from warmpool.manifest import ExecutableSpec, ProofSpec, bucket_name
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.draft import Draft
from warmpool.publishing.machines import Children, Machine
from warmpool.publishing.program import Program
from warmpool.publishing.progress import Progress
from warmpool.publishing.slots import Slots
from warmpool.publishing.subject import points_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One executable that a target needs."""

    method: str
    bucket: Bucket
    key: str
    ingredients: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.method} {bucket_name(self.bucket.sizes)}"


class Jobs:
    """Runs children for a list of entries.

    Attributes:
        from_stored: Whether the references are stored executables; else they are plain JAX.
    """

    def __init__(self, draft: Draft, machine: Machine, children: Children, progress: Progress) -> None:
        self._draft = draft
        self._machine = machine
        self._children = children
        self._progress = progress
        self._slots = Slots()
        self._artifacts: dict[str, Path] = {}
        self._compiles: dict[str, Future[Path]] = {}
        self._references: dict[tuple[str, str], Future[Path]] = {}
        self._unpadded: dict[tuple[str, str], Entry] = {}
        self.from_stored = False

    def begin(self, executor: Executor, todo: Sequence[Entry], every: Sequence[Entry], stored: dict[str, Path]) -> None:
        """Begin what the entries need, in their order.

        Args:
            executor: Where it runs.
            todo: The entries to prove.
            every: All entries of the target.
            stored: Verified artifacts in the store, by key; the others are compiled.
        """
        self._artifacts = dict(stored)
        self.from_stored = all(entry.key in stored for entry in every)
        self._unpadded = self._entries_without_padding(every)
        for entry in todo:
            if entry.key not in stored and entry.key not in self._compiles:
                self._compiles[entry.key] = executor.submit(self._compile, entry)
            for point in self._points(entry):
                identity = (entry.method, bucket_name(point))
                if identity not in self._references:
                    begin = self._run_stored if self.from_stored else self._run_plain
                    self._references[identity] = executor.submit(begin, entry, point)
        self._progress.expect(len(self._compiles) + len(self._references) + len(todo))

    def artifact(self, entry: Entry) -> Path:
        """The entry's artifact; waits for its compile if it has one."""
        return self._artifacts.get(entry.key) or self._compiles[entry.key].result()

    def tried(self, entry: Entry) -> tuple[ExecutableSpec, list[ProofSpec]]:
        """Prove and measure an entry, once its artifact and references are there.

        Raises:
            ProofFailed: It does not answer as it must.
            PublishError: A child failed.
        """
        artifact = self.artifact(entry)
        points = self._points(entry)
        names = [bucket_name(point) for point in points]
        references = {name: str(self._references[entry.method, name].result()) for name in names}
        argument = self._argument(entry, artifact=str(artifact), references=references, points=points)
        with self._slots.exclusive():
            result = self._children.run("trial", argument, self._place(entry, "its trial run"))
        if result["failure"]:
            raise ProofFailed(f"model {self._draft.manifest.model!r}, method {entry.method!r}: {result['failure']}")
        self._progress.step(f"proved {entry.name}, {result['cost_us'] / 1000:.3g} ms a run")
        spec = ExecutableSpec(
            key=entry.key,
            method=entry.method,
            bucket=entry.bucket.sizes,
            minimum=entry.bucket.minimum,
            ladder=entry.bucket.ladder,
            cost_us=result["cost_us"],
            size_bytes=artifact.stat().st_size,
        )
        return spec, msgspec.convert(result["proofs"], list[ProofSpec])

    def _points(self, entry: Entry) -> list[dict[str, int]]:
        """The exact shapes that prove an entry; of stored references only those that there are."""
        dims = list(self._draft.subject(entry.method).dims.values())
        points = points_of(dims, entry.bucket.sizes, stored=self.from_stored)
        if self.from_stored:
            return [point for point in points if (entry.method, bucket_name(point)) in self._unpadded]
        return points

    def _entries_without_padding(self, entries: Sequence[Entry]) -> dict[tuple[str, str], Entry]:
        """By method and point the entry that needs no padding for it, of the smallest batch."""
        found: dict[tuple[str, str], Entry] = {}
        for entry in entries:
            batch = self._draft.subject(entry.method).batch
            sizes = entry.bucket.sizes
            identity = (entry.method, bucket_name({name: size for name, size in sizes.items() if name != batch}))
            best = found.get(identity)
            if best is None or (batch and sizes[batch] < best.bucket.sizes[batch]):
                found[identity] = entry
        return found

    def _compile(self, entry: Entry) -> Path:
        artifact = self._draft.folder / f"artifact-{self._machine.fingerprint.digest}-{entry.key}"
        program = self._draft.program(entry.method, entry.bucket)
        argument = self._argument(entry, artifact=str(artifact), **self._program(program))
        result = self._child("compile_bucket", argument, self._place(entry, "compiling"))
        self._progress.step(f"compiled {entry.name}, {result['compile_s']:.2f} s")
        return artifact

    def _run_plain(self, entry: Entry, point: dict[str, int]) -> Path:
        batch = self._draft.subject(entry.method).batch
        with self._slots.shared():
            program = self._draft.exported[entry.method].program_at({batch: 1, **point} if batch else point)
        return self._run_reference("reference", entry, point, **self._program(program))

    def _run_stored(self, entry: Entry, point: dict[str, int]) -> Path:
        unpadded = self._unpadded[entry.method, bucket_name(point)]
        return self._run_reference("reference_stored", unpadded, point, artifact=str(self._artifacts[unpadded.key]))

    def _run_reference(self, worker: str, entry: Entry, point: dict[str, int], **more: Any) -> Path:
        name = bucket_name(point)
        outputs = self._draft.folder / f"reference-{self._machine.fingerprint.digest}-{entry.method}-{name}.npz"
        argument = self._argument(entry, point=point, outputs=str(outputs), **more)
        model = self._draft.manifest.model
        place = f"model {model!r}, method {entry.method!r}"
        result = self._child(worker, argument, f"{place}: the reference at {name}")
        if nowhere := result["nowhere_a_number"]:
            cause = "look for NaN in the weights, or give the inputs low and high"
            raise ProofFailed(f"{place}: output {nowhere[0]!r} at {name} is NaN everywhere; {cause}")
        self._progress.step(f"reference {entry.method} {name}")
        return outputs

    def _argument(self, entry: Entry, **more: Any) -> dict[str, Any]:
        return {
            "manifest": str(self._draft.manifest_file),
            "weights": str(self._draft.weights_file),
            "method": entry.method,
            "bucket": entry.bucket.sizes,
            "key": entry.key,
            "ingredients": entry.ingredients,
            "platform": self._machine.platform,
            "mode": self._machine.mode,
            "stored": self.from_stored,
            **more,
        }

    def _program(self, program: Program) -> dict[str, str]:
        return {"program": str(self._draft.program_file(program)), "program_digest": program.digest}

    def _child(self, worker: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        with self._slots.shared():
            return self._children.run(worker, argument, what)

    def _place(self, entry: Entry, what: str) -> str:
        bucket = bucket_name(entry.bucket.sizes)
        return f"model {self._draft.manifest.model!r}, method {entry.method!r}, bucket {bucket}: {what}"
