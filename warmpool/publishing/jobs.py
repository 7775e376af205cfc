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

from cache.signing import ANYONE, Trust
from warmpool.errors import ProofFailed, PublishError
from warmpool.manifest import ExecutableSpec, MemorySpec, ProofSpec, bucket_name
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Edge, Entry, Identity, Point, Points
from warmpool.publishing.export import Author
from warmpool.publishing.machines import Children, Machine
from warmpool.publishing.program import Program
from warmpool.publishing.progress import Progress
from warmpool.publishing.prove import unfaithful
from warmpool.publishing.references import References
from warmpool.publishing.slots import Slots
from warmpool.publishing.subject import Sizes


class Jobs:
    """Runs children for a list of entries.

    Attributes:
        from_stored: Whether the references are stored executables as far as there are any; else they are plain JAX.
        edges: Executables of exact shapes that no bucket has, once they ran. They are references only, stored so that
            new weights of the same programs compile nothing. Who stores one takes it off the list.
        edges_found: Keys of those that are in the store already.
        references_compiled: How many references were compiled, for want of stored ones.
    """

    def __init__(
        self,
        draft: Draft,
        machine: Machine,
        children: Children,
        progress: Progress,
        trust: Trust,
        exact: Callable[[str, Sizes], Entry],
    ) -> None:
        self._exact = exact
        self._draft = draft
        self._machine = machine
        self._children = children
        self._progress = progress
        self._trust = trust
        self._slots = Slots()
        self._artifacts: dict[str, Path] = {}
        self._found: set[str] = set()  # keys of artifacts that were in the store: they bear a signature
        self._compiles: dict[str, Future[Path]] = {}
        self._references: dict[Identity, Future[Path]] = {}
        self._authors: dict[str, Future[None]] = {}
        self._unpadded: dict[Identity, Entry] = {}
        self._edges: dict[Identity, Entry] = {}
        self._smallest: dict[str, tuple[Entry, Point]] = {}
        self._points = Points(draft, stored=False)
        self._entries = 0  # that were begun or skipped
        self._expected = 0
        self.edges: list[Edge] = []
        self.edges_found: set[str] = set()
        self.references_compiled = 0
        self.from_stored = False

    def plan(
        self,
        executor: Executor,
        todo: Sequence[Entry],
        every: Sequence[Entry],
        stored: dict[str, Path],
        find: Callable[[Entry], Path | None],
    ) -> None:
        """Decide what the entries need, and begin nothing.

        Args:
            executor: Where it will run.
            todo: The entries to prove.
            every: All entries of the target.
            stored: Verified artifacts in the store, by key; the others are compiled.
            find: Looks for a verified artifact of another entry in the store.
        """
        self._executor = executor
        self._artifacts = dict(stored)
        self._found = set(stored)
        self.from_stored = all(entry.key in stored for entry in every)
        self._points = Points(self._draft, self.from_stored)
        self._unpadded = self._points.unpadded(every)
        self._edges = self._points.at_edges(todo, self._unpadded, self._exact)
        if self.from_stored:
            found = {identity: (edge, find(edge)) for identity, edge in self._edges.items()}
            self._unpadded |= {identity: edge for identity, (edge, path) in found.items() if path}
            self._artifacts |= {edge.key: path for edge, path in found.values() if path}
            self.edges_found = {edge.key for edge, path in found.values() if path}
            self._found |= self.edges_found
        if self._machine.platform == "cpu" and not self.from_stored:
            having = [entry for entry in todo if self._draft.exported[entry.method].author]
            self._smallest = self._points.smallest(having)
        compiles = {entry.key for entry in todo} - stored.keys()
        self._expect(len(compiles) + len(self._points.identities(todo)) + len(self._smallest) + len(todo))

    def begin(self, entry: Entry) -> None:
        """Begin what one of the entries needs; all before it that is ours has been begun."""
        self._entries += 1
        self._begin_author(entry.method)
        if not self.has(entry):
            self._compiles[entry.key] = self._executor.submit(self._compile, entry)
        for point in self._points.of(entry):
            self._begin_reference(entry, point)

    def has(self, entry: Entry) -> bool:
        """Whether there is an artifact, or one is being compiled."""
        return entry.key in self._artifacts or entry.key in self._compiles

    def compiled(self, entry: Entry) -> bool:
        """Whether it is compiled here."""
        return entry.key in self._compiles

    def take(self, entry: Entry, path: Path) -> None:
        """A verified artifact of an entry is in the store by now."""
        self._artifacts[entry.key] = path
        self._found.add(entry.key)

    def skip(self, entry: Entry) -> None:
        """An entry needs nothing any more."""
        self._entries += 1
        self._progress.step(f"took {entry.name}, which another publish made and proved")

    def end(self) -> None:
        """Nothing more will be begun: what others did is no longer expected."""
        begun = len(self._compiles) + len(self._references) + len(self._authors) + self._entries
        self._expect(begun - self._expected)

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
            reference = self._begin_reference(entry, point)
            self._authors[method] = self._executor.submit(self._run_author, method, author, point, reference)

    def _begin_reference(self, entry: Entry, point: Point) -> Future[Path]:
        identity = (entry.method, bucket_name(point))
        if identity not in self._references:
            stands = self.from_stored and identity in self._unpadded
            begin = self._run_stored if stands else self._run_plain
            self.references_compiled += not stands
            self._references[identity] = self._executor.submit(begin, entry, point)
        return self._references[identity]

    def artifact(self, entry: Entry) -> Path:
        """The entry's artifact; waits for its compile if it has one."""
        return self._artifacts.get(entry.key) or self._compiles[entry.key].result()

    def tried(self, entry: Entry, digest: str = "") -> tuple[ExecutableSpec, list[ProofSpec]]:
        """Prove and measure an entry, once its artifact and references are there.

        Args:
            entry: The entry.
            digest: SHA-256 of the bytes that are to be stored; "" if they are already.

        Raises:
            ProofFailed: It does not answer as it must.
            PublishError: A child failed.
        """
        if entry.method in self._authors:
            self._authors[entry.method].result()
        artifact = self.artifact(entry)
        points = self._points.of(entry)
        references = {name: str(self._references[entry.method, name].result()) for name in map(bucket_name, points)}
        result = self._trial(entry, artifact, references, points, digest)
        self._progress.step(f"proved {entry.name}, {result['cost_us'] / 1000:.3g} ms a run")
        spec = ExecutableSpec(
            key=entry.key,
            method=entry.method,
            bucket=entry.bucket.sizes,
            minimum=entry.bucket.minimum,
            ladder=entry.bucket.ladder,
            cost_us=result["cost_us"],
            size_bytes=artifact.stat().st_size,
            memory=msgspec.convert(result["memory"], MemorySpec),
        )
        return spec, msgspec.convert(result["proofs"], list[ProofSpec])

    def try_edge(self, edge: Edge, digest: str) -> None:
        """Load a reference's executable, which so far only who compiled it ran, and compare it with that run.

        Raises:
            ProofFailed: It does not answer like the one that was compiled.
            PublishError: A child failed.
        """
        self._trial(edge.entry, edge.artifact, {bucket_name(edge.point): str(edge.outputs)}, [edge.point], digest)

    def _trial(
        self, entry: Entry, artifact: Path, references: dict[str, str], points: Sequence[Point], digest: str
    ) -> dict[str, Any]:
        argument = self._argument(entry, artifact=str(artifact), references=references, points=points)
        with self._slots.exclusive():
            result = self._children.run("trial", argument, self._place(entry, "its trial run"))
        if result["failure"]:
            raise ProofFailed(f"model {self._draft.manifest.model!r}, method {entry.method!r}: {result['failure']}")
        if digest not in {"", result["digest"]}:
            raise PublishError(f"{self.place(entry)}: its artifact was changed while it was tried")
        return result

    def _compile(self, entry: Entry) -> Path:
        artifact = self._artifact_file(entry)
        program = self._draft.program(entry.method, entry.bucket)
        argument = self._argument(entry, artifact=str(artifact), **self._program(program))
        result = self._child("compile_bucket", argument, self._place(entry, "compiling"))
        self._progress.step(f"compiled {entry.name}, {result['compile_s']:.2f} s")
        return artifact

    def _artifact_file(self, entry: Entry) -> Path:
        return self._draft.folder / f"artifact-{self._machine.fingerprint.digest}-{entry.key}"

    def _run_plain(self, entry: Entry, point: Point) -> Path:
        with self._slots.shared():
            program = self._draft.exported[entry.method].program_at(
                self._draft.subject(entry.method).exact_sizes(point)
            )
        edge = self._edges.get((entry.method, bucket_name(point)))
        if edge is None:
            return self._run_reference("reference", entry, point, artifact=None, **self._program(program))
        artifact = self._artifact_file(edge)
        outputs = self._run_reference("reference", edge, point, artifact=str(artifact), **self._program(program))
        self.edges.append(Edge(edge, point, artifact, outputs))
        return outputs

    def _run_author(self, method: str, author: Author, point: Point, reference: Future[Path]) -> None:
        """Compare a reference, which is the exported program, with the author's function that it was exported from."""
        references = References({bucket_name(point): str(reference.result())}, self._draft.manifest.methods[method])
        with self._slots.shared():
            failure = unfaithful(self._draft.subject(method), point, author, references.of)
        if failure:
            raise ProofFailed(f"model {self._draft.manifest.model!r}, method {method!r}: {failure}")
        self._progress.step(f"compared the function {method} with its program")

    def _run_stored(self, entry: Entry, point: Point) -> Path:
        unpadded = self._unpadded[entry.method, bucket_name(point)]
        return self._run_reference("reference_stored", unpadded, point, artifact=str(self._artifacts[unpadded.key]))

    def _run_reference(self, worker: str, entry: Entry, point: Point, **more: Any) -> Path:
        name = bucket_name(point)
        outputs = self._draft.folder / f"reference-{self._machine.fingerprint.digest}-{entry.method}-{name}.npz"
        argument = self._argument(entry, point=point, outputs=str(outputs), **more)
        model = self._draft.manifest.model
        place = f"model {model!r}, method {entry.method!r}"
        result = self._child(worker, argument, f"{place}: the reference at {name}")
        if nowhere := result["nowhere_a_number"]:
            cause = "look for NaN in the weights, or give the inputs low and high"
            raise ProofFailed(f"{place}: output {nowhere[0]!r} at {name} is NaN everywhere; {cause}")
        self._progress.step(f"{'compiled reference' if worker == 'reference' else 'reference'} {entry.method} {name}")
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
            "trust": (self._trust if entry.key in self._found else ANYONE).to_json(),
            **more,
        }

    def _program(self, program: Program) -> dict[str, str]:
        return {"program": str(self._draft.program_file(program)), "program_digest": program.digest}

    def _child(self, worker: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        with self._slots.shared():
            return self._children.run(worker, argument, what)

    def _place(self, entry: Entry, what: str) -> str:
        return f"{self.place(entry)}: {what}"

    def place(self, entry: Entry) -> str:
        """An entry as an error names it."""
        bucket = bucket_name(entry.bucket.sizes)
        return f"model {self._draft.manifest.model!r}, method {entry.method!r}, bucket {bucket}"
