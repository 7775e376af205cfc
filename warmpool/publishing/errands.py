"""What the children of one target are told, when they may run, and what a failure of theirs is called."""

from __future__ import annotations

from typing import Any

from cache.signing import ANYONE, Trust
from warmpool.manifest import bucket_name
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Entry
from warmpool.publishing.machines import Children, Machine
from warmpool.publishing.places import FAST_OPTIONS
from warmpool.publishing.program import Program
from warmpool.publishing.slots import Slots


class Errands:
    """Runs children of a draft for one kind of machine.

    Attributes:
        draft: The version.
        machine: The kind of machine.
        slots: Whose turn it is.
        found: Keys of artifacts that were in the store: they bear a signature.
        from_stored: Whether references are stored executables as far as there are any; else they are plain JAX.
    """

    def __init__(self, draft: Draft, machine: Machine, children: Children, trust: Trust) -> None:
        self.draft = draft
        self.machine = machine
        self.slots = Slots()
        self.found: set[str] = set()
        self.from_stored = False
        self._children = children
        self._trust = trust

    def argument(self, entry: Entry, **more: Any) -> dict[str, Any]:
        """What a child is told about an entry."""
        return {
            "manifest": str(self.draft.manifest_file),
            "weights": str(self.draft.weights_file),
            "method": entry.method,
            "bucket": entry.bucket.sizes,
            "key": entry.key,
            "ingredients": entry.ingredients,
            "options": FAST_OPTIONS if entry.ladder else {},
            "platform": self.machine.platform,
            "mode": self.machine.mode,
            "stored": self.from_stored,
            "trust": (self._trust if entry.key in self.found else ANYONE).to_json(),
            **more,
        }

    def program(self, program: Program) -> dict[str, str]:
        """What a child is told about a program."""
        return {"program": str(self.draft.program_file(program)), "program_digest": program.digest}

    def artifact_file(self, entry: Entry) -> str:
        """Where a child writes what it compiled."""
        return str(self.draft.folder / f"artifact-{self.machine.fingerprint.digest}-{entry.key}")

    def outputs_file(self, method: str, point: str) -> str:
        """Where a child writes what a method answers at an exact shape."""
        return str(self.draft.folder / f"reference-{self.machine.fingerprint.digest}-{method}-{point}.npz")

    def run(self, worker: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        """Run a child beside others.

        Raises:
            PublishError: It failed.
        """
        with self.slots.shared():
            return self._children.run(worker, argument, what)

    def run_alone(self, worker: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        """Run a child beside no other; raises as `run` does."""
        with self.slots.exclusive():
            return self._children.run(worker, argument, what)

    def place_of_method(self, method: str) -> str:
        """A method as an error names it."""
        return f"model {self.draft.manifest.model!r}, method {method!r}"

    def place(self, entry: Entry) -> str:
        """An entry as an error names it."""
        lane = " for the CPU lane" if entry.ladder else ""
        return f"{self.place_of_method(entry.method)}, bucket {bucket_name(entry.bucket.sizes)}{lane}"
