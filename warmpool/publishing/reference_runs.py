"""The answers that trials compare with: each exact shape of a method is run once, wherever that costs least.

That is, in this order: nowhere, if the store has kept what was answered there once; by a stored executable that
pads nothing for it, where nothing is compiled at all; by the child that compiles the executable of that very shape, if
there is one; and else by a compile of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from warmpool.errors import ProofFailed, PublishError
from warmpool.manifest import bucket_name
from warmpool.publishing.entries import Edge, Entry, Identity, Points
from warmpool.publishing.errands import Errands
from warmpool.publishing.kept_answers import KeptAnswers
from warmpool.publishing.points import Point, Sizes
from warmpool.publishing.progress import Progress


class ReferenceRuns:
    """One target's references.

    Attributes:
        compiled: How many were compiled for nothing else.
        edges: Executables of exact shapes that no bucket has, once they ran. They are references only, stored so that
            new weights of the same programs compile nothing. Who stores one takes it off the list.
        edges_found: Keys of those that are in the store already.
    """

    def __init__(self, errands: Errands, executor: Executor, progress: Progress, kept: KeptAnswers) -> None:
        self.compiled = 0
        self.edges: list[Edge] = []
        self.edges_found: set[str] = set()
        self._errands = errands
        self._executor = executor
        self._progress = progress
        self._kept = kept
        self._begun: dict[Identity, Future[Any]] = {}
        self._wrong: dict[Identity, PublishError] = {}
        self._unpadded: dict[Identity, Entry] = {}
        self._stored: dict[Identity, tuple[Entry, Path]] = {}
        self._edges: dict[Identity, Entry] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def plan(
        self,
        points: Points,
        todo: Sequence[Entry],
        every: Sequence[Entry],
        stored: Mapping[str, Path],
        find: Callable[[Entry], Path | None],
        exact: Callable[[str, Sizes], Entry],
    ) -> None:
        """Decide what may be the references of the entries `todo`; the arguments are those of `Jobs`."""
        self._unpadded = points.unpadded(every)
        self._edges = points.at_edges(todo, self._unpadded, exact)
        if not points.stored:
            return
        self._stored = {identity: (entry, stored[entry.key]) for identity, entry in self._unpadded.items()}
        found = {identity: (edge, path) for identity, edge in self._edges.items() if (path := find(edge))}
        self._stored |= found
        self.edges_found = {edge.key for edge, _ in found.values()}
        self._errands.found |= self.edges_found

    def begin(self, entry: Entry, point: Point) -> None:
        """Begin the one at a point of an entry, if it is not begun."""
        identity = (entry.method, bucket_name(point))
        if identity in self._begun or self._fetched(entry.method, point):
            return
        if identity in self._stored:
            self._begun[identity] = self._executor.submit(self._run_stored, point, *self._stored[identity])
        else:
            self.compiled += 1
            self._begun[identity] = self._executor.submit(self._run_plain, entry, point)

    def begin_with(self, entry: Entry, point: Point, compile_entry: Callable[..., Future[Any]]) -> Future[Any]:
        """Begin an entry's compile, and have it run the reference that it can: one that nothing else runs already.

        Args:
            entry: The entry.
            point: Its own sizes.
            compile_entry: Begins the compile, and the run too if it is given a file for the outputs.
        """
        identity = (entry.method, bucket_name(point))
        known = self._unpadded.get(identity) is not entry or identity in self._begun
        if known or self._fetched(entry.method, point):
            return compile_entry(None)
        self._begun[identity] = compile_entry(self._errands.outputs_file(*identity))
        return self._begun[identity]

    def ran(self, method: str, point: Point, result: Mapping[str, Any], how: str = "reference") -> None:
        """Take over what a child says of its run, before its future is done."""
        identity = (method, bucket_name(point))
        where = self._errands.place_of_method(method)
        if failure := result.get("failure"):
            self._wrong[identity] = PublishError(f"{where}: the reference at {identity[1]} failed: {failure}")
        elif nowhere := result["nowhere_a_number"]:
            cause = "look for NaN in the weights, or give the inputs low and high"
            problem = f"{where}: output {nowhere[0]!r} at {identity[1]} is NaN everywhere; {cause}"
            self._wrong[identity] = ProofFailed(problem)
        else:
            self._kept.keep(method, point, Path(self._errands.outputs_file(*identity)))
        self._progress.step(f"{how} {method} {identity[1]}")

    def outputs(self, method: str, point: Point) -> str:
        """The file with the answers at a point, once they are there.

        Raises:
            ProofFailed: They are no numbers.
            PublishError: They could not be made.
        """
        identity = (method, bucket_name(point))
        self._begun[identity].result()
        if wrong := self._wrong.get(identity):
            raise wrong
        return self._errands.outputs_file(*identity)

    def _fetched(self, method: str, point: Point) -> bool:
        """Whether the answers at a point are there now, for the store has kept them."""
        identity = (method, bucket_name(point))
        if not self._kept.fetch(method, point, Path(self._errands.outputs_file(*identity))):
            return False
        self._begun[identity] = Future()
        self._begun[identity].set_result(None)
        self._progress.step(f"kept reference {method} {identity[1]}")
        return True

    def _run_stored(self, point: Point, entry: Entry, artifact: Path) -> None:
        self._run("reference_stored", entry, point, artifact=str(artifact))

    def _run_plain(self, entry: Entry, point: Point) -> None:
        draft = self._errands.draft
        with self._errands.slots.shared():
            program = draft.exported[entry.method].program_at(draft.subject(entry.method).exact_sizes(point))
        more = self._errands.program(program)
        edge = self._edges.get((entry.method, bucket_name(point)))
        if edge is None:
            self._run("reference", entry, point, artifact=None, **more)
            return
        artifact = self._errands.artifact_file(edge)
        outputs = self._run("reference", edge, point, artifact=artifact, **more)
        self.edges.append(Edge(edge, point, Path(artifact), Path(outputs)))

    def _run(self, worker: str, entry: Entry, point: Point, **more: Any) -> str:
        name = bucket_name(point)
        outputs = self._errands.outputs_file(entry.method, name)
        argument = self._errands.argument(entry, point=point, outputs=outputs, **more)
        what = f"{self._errands.place_of_method(entry.method)}: the reference at {name}"
        result = self._errands.run(worker, argument, what)
        self.ran(entry.method, point, result, "compiled reference" if worker == "reference" else "reference")
        return outputs
