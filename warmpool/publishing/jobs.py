"""The children's work for one target: compiles, references and trials, each begun once, waited for where needed.

An entry's work begins when it is known that it is ours to do: other publishes may be doing some of it.

Compiles and references run beside each other. A trial runs alone, because its run time goes into the cost table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec

from cache.signing import Trust
from warmpool.errors import ProofFailed, PublishError
from warmpool.manifest import ExecutableSpec, MemorySpec, ProofSpec, bucket_name
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Edge, Entry, Points
from warmpool.publishing.errands import Errands
from warmpool.publishing.export import Author
from warmpool.publishing.kept_answers import KeptAnswers
from warmpool.publishing.machines import Children, Machine
from warmpool.publishing.points import Point, Sizes
from warmpool.publishing.progress import Progress
from warmpool.publishing.prove import unfaithful
from warmpool.publishing.reference_runs import ReferenceRuns
from warmpool.publishing.references import References


class Jobs:
    """Runs children for a list of entries.

    Args:
        draft: The version.
        machine: The kind of machine.
        children: Run the work.
        executor: Where children are waited for.
        progress: Shows it.
        trust: Whose signatures count.
        kept: What plain JAX answered before.

    Attributes:
        references: What the trials compare with.
    """

    def __init__(
        self,
        draft: Draft,
        machine: Machine,
        children: Children,
        executor: Executor,
        progress: Progress,
        trust: Trust,
        kept: KeptAnswers,
    ) -> None:
        self._draft = draft
        self._errands = Errands(draft, machine, children, trust)
        self._trust = trust
        self._executor = executor
        self._progress = progress
        self._artifacts: dict[str, Path] = {}
        self._compiles: dict[str, Future[Path]] = {}
        self._authors: dict[str, Future[None]] = {}
        self._smallest: dict[str, tuple[Entry, Point]] = {}
        self._points = Points(draft, stored=False)
        self._entries = 0  # that were begun or skipped
        self._expected = 0
        self.references = ReferenceRuns(self._errands, executor, progress, kept)

    def plan(
        self,
        todo: Sequence[Entry],
        every: Sequence[Entry],
        stored: dict[str, Path],
        find: Callable[[Entry], Path | None],
        exact: Callable[[str, Sizes], Entry],
    ) -> None:
        """Decide what the entries need, and begin nothing.

        Args:
            todo: The entries to prove.
            every: All entries of the target.
            stored: Verified artifacts in the store, by key; the others are compiled.
            find: Looks for a verified artifact of another entry in the store.
            exact: Makes an entry of a method at an exact shape.
        """
        self._artifacts = dict(stored)
        self._errands.found = set(stored)
        self._errands.from_stored = from_stored = all(entry.key in stored for entry in every)
        self._points = Points(self._draft, stored=from_stored)
        self.references.plan(self._points, todo, every, stored, find, exact)
        if self._errands.machine.platform == "cpu" and not from_stored:
            having = [entry for entry in todo if self._draft.exported[entry.method].author]
            self._smallest = self._points.smallest(having)
        compiles = {entry.key for entry in todo} - stored.keys()
        self._expect(len(compiles) + len(self._points.identities(todo)) + len(self._smallest) + len(todo))

    def begin(self, entry: Entry) -> None:
        """Begin what one of the entries needs; all before it that is ours has been begun."""
        self._entries += 1
        if not self.has(entry):
            point = self._points.own(entry)

            def compile_entry(outputs: str | None) -> Future[Path]:
                return self._executor.submit(self._compile, entry, point, outputs)

            self._compiles[entry.key] = self.references.begin_with(entry, point, compile_entry)
        self._begin_author(entry.method)
        for point in self._points.of(entry):
            self.references.begin(entry, point)

    def has(self, entry: Entry) -> bool:
        """Whether there is an artifact, or one is being compiled."""
        return entry.key in self._artifacts or entry.key in self._compiles

    def compiled(self, entry: Entry) -> bool:
        """Whether it is compiled here."""
        return entry.key in self._compiles

    def take(self, entry: Entry, path: Path) -> None:
        """A verified artifact of an entry is in the store by now."""
        self._artifacts[entry.key] = path
        self._errands.found.add(entry.key)

    def skip(self, why: str) -> None:
        """An entry needs nothing any more."""
        self._entries += 1
        self._progress.step(why)

    def end(self) -> None:
        """Nothing more will be begun: what others did is no longer expected."""
        begun = len(self._compiles) + len(self.references) + len(self._authors) + self._entries
        self._expect(begun - self._expected)

    def place(self, entry: Entry) -> str:
        """An entry as an error names it."""
        return self._errands.place(entry)

    def artifact(self, entry: Entry) -> Path:
        """The entry's artifact; waits for its compile if it has one."""
        return self._artifacts.get(entry.key) or self._compiles[entry.key].result()

    def answers(self, entry: Entry) -> dict[str, str]:
        """Files with the answers that an entry is compared with, by point; waits for them.

        Raises:
            ProofFailed: They are no numbers, or not those of the author's function.
            PublishError: They could not be made.
        """
        if entry.method in self._authors:
            self._authors[entry.method].result()
        return {bucket_name(point): self.references.outputs(entry.method, point) for point in self._points.of(entry)}

    def tried(self, entry: Entry, digest: str = "") -> tuple[ExecutableSpec, list[ProofSpec]]:
        """Prove and measure an entry, once its artifact and references are there.

        Args:
            entry: The entry.
            digest: SHA-256 of the bytes that are to be stored; "" if they are already.

        Raises:
            ProofFailed: It does not answer as it must.
            PublishError: A child failed.
        """
        artifact, references, points = self.artifact(entry), self.answers(entry), self._points.of(entry)
        result = self._trial(entry, artifact, digest, references=references, points=points, measured=True)
        self._progress.step(f"proved {entry.name}, {result['cost_us'] / 1000:.3g} ms a run")
        spec = ExecutableSpec(
            key=entry.key,
            method=entry.method,
            bucket=entry.bucket.sizes,
            minimum=entry.bucket.minimum,
            ladder=entry.ladder,
            cpu_lane_only=entry.ladder,
            cost_us=result["cost_us"],
            size_bytes=artifact.stat().st_size,
            memory=msgspec.convert(result["memory"], MemorySpec),
        )
        return spec, msgspec.convert(result["proofs"], list[ProofSpec])

    def alike(
        self, entry: Entry, artifact: Path, other: Entry, others_artifact: Path, others_machine: Machine
    ) -> list[ProofSpec]:
        """Compare an entry with that of the same bucket in the other lane; both are in the store.

        Raises:
            ProofFailed: They do not answer alike.
            PublishError: A child failed.
        """
        outputs = self._errands.outputs_file(other.method, f"lane-{other.place.bucket}")
        told = {"outputs": outputs, "points": self._points.of(entry), "trust": self._trust.to_json()}
        machine = {"platform": others_machine.platform, "mode": others_machine.mode}
        what = f"{self.place(entry)}: comparing the lanes"
        self._errands.run(
            "answers", self._errands.argument(other, artifact=str(others_artifact), **machine, **told), what
        )
        result = self._errands.run("lanes", self._errands.argument(entry, artifact=str(artifact), **told), what)
        if result["failure"]:
            raise ProofFailed(f"{self._errands.place_of_method(entry.method)}: {result['failure']}")
        return msgspec.convert(result["proofs"], list[ProofSpec])

    def try_edge(self, edge: Edge, digest: str) -> None:
        """Load a reference's executable, which so far only who compiled it ran, and compare it with that run.

        Raises:
            ProofFailed: It does not answer like the one that was compiled.
            PublishError: A child failed.
        """
        references = {bucket_name(edge.point): str(edge.outputs)}
        self._trial(edge.entry, edge.artifact, digest, references=references, points=[edge.point], measured=False)

    def _trial(self, entry: Entry, artifact: Path, digest: str, **told: Any) -> dict[str, Any]:
        argument = self._errands.argument(entry, artifact=str(artifact), **told)
        run = self._errands.run_alone if told["measured"] else self._errands.run
        result = run("trial", argument, f"{self.place(entry)}: its trial run")
        if result["failure"]:
            raise ProofFailed(f"{self._errands.place_of_method(entry.method)}: {result['failure']}")
        if digest not in {"", result["digest"]}:
            raise PublishError(f"{self.place(entry)}: its artifact was changed while it was tried")
        return result

    def _expect(self, steps: int) -> None:
        self._expected += steps
        self._progress.expect(steps)

    def _begin_author(self, method: str) -> None:
        """Begin what compares the references with the author's function: once a method, at its smallest point.

        That is for the CPU to do, which every publish is for; and before the rest of the method, which waits for it.
        """
        author = self._draft.exported[method].author
        if author is not None and method in self._smallest and method not in self._authors:
            entry, point = self._smallest[method]
            self.references.begin(entry, point)
            self._authors[method] = self._executor.submit(self._run_author, method, author, point)

    def _run_author(self, method: str, author: Author, point: Point) -> None:
        """Compare a reference, which is the exported program, with the author's function that it was exported from."""
        outputs = {bucket_name(point): self.references.outputs(method, point)}
        references = References(outputs, self._draft.manifest.methods[method])
        with self._errands.slots.shared():
            failure = unfaithful(self._draft.subject(method), point, author, references.of)
        if failure:
            raise ProofFailed(f"{self._errands.place_of_method(method)}: {failure}")
        self._progress.step(f"compared the function {method} with its program")

    def _compile(self, entry: Entry, point: Point, outputs: str | None) -> Path:
        artifact = self._errands.artifact_file(entry)
        program = self._errands.program(self._draft.program(entry.method, entry.bucket))
        argument = self._errands.argument(entry, artifact=artifact, point=point, outputs=outputs, **program)
        result = self._errands.run("compile_bucket", argument, f"{self.place(entry)}: compiling")
        self._progress.step(f"compiled {entry.name}, {result['compile_s']:.2f} s")
        if outputs:
            self.references.ran(entry.method, point, result)
        return Path(artifact)
