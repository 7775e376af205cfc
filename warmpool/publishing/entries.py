"""The executables that a target needs, and the exact shapes at which they are proved. Pure: of the draft alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmpool.manifest import bucket_name
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.draft import Draft
from warmpool.publishing.places import Place
from warmpool.publishing.points import Point, Sizes

Identity = tuple[str, str]  # a method, and the name of a point


@dataclass(frozen=True, slots=True)
class Entry:
    """One executable that a target needs; `ladder`: for the CPU lane alone, compiled fast."""

    method: str
    bucket: Bucket
    key: str
    ingredients: dict[str, str]
    ladder: bool = False

    @property
    def name(self) -> str:
        return f"{self.method} {bucket_name(self.bucket.sizes)}" + (" for the CPU lane" if self.ladder else "")

    @property
    def place(self) -> Place:
        return Place(self.method, bucket_name(self.bucket.sizes), self.ladder)


@dataclass(frozen=True, slots=True)
class Edge:
    """A reference to store: an exact shape as an entry, its point, its artifact, and what it answered there."""

    entry: Entry
    point: Point
    artifact: Path
    outputs: Path


class Points:
    """The exact shapes of a draft's entries.

    Attributes:
        stored: Whether the references are stored executables as far as there are any; else they are plain JAX.
    """

    def __init__(self, draft: Draft, *, stored: bool) -> None:
        self.stored = stored
        self._subjects = {method: draft.subject(method) for method in draft.manifest.methods}
        self._planned: dict[str, list[Sizes]] = {method: [] for method in self._subjects}
        for method, bucket in draft.entries:
            self._planned[method].append(bucket.sizes)
        self._found: dict[tuple[str, str, bool], list[Point]] = {}

    def of(self, entry: Entry) -> list[Point]:
        """Those that prove an entry."""
        return self._of(entry, stored=self.stored)

    def _of(self, entry: Entry, *, stored: bool) -> list[Point]:
        place = (entry.method, bucket_name(self.own(entry)), stored)
        if place not in self._found:
            planned = self._planned[entry.method]
            self._found[place] = self._subjects[entry.method].points(entry.bucket.sizes, planned, stored=stored)
        return self._found[place]

    def identities(self, entries: Sequence[Entry]) -> set[Identity]:
        """Those that prove any of these entries."""
        return {(entry.method, bucket_name(point)) for entry in entries for point in self.of(entry)}

    def own(self, entry: Entry) -> Point:
        """The one where nothing of an entry is padded."""
        return self._subjects[entry.method].without_batch(entry.bucket.sizes)

    def unpadded(self, entries: Sequence[Entry]) -> dict[Identity, Entry]:
        """By method and point the entry that neither pads nor merges anything for it, and is compiled as plain JAX."""
        found: dict[Identity, Entry] = {}
        for entry in entries:
            if entry.ladder:
                continue
            batch = self._subjects[entry.method].batch
            if batch is None or entry.bucket.sizes[batch] == 1:
                found[entry.method, bucket_name(self.own(entry))] = entry
        return found

    def at_edges(
        self, entries: Sequence[Entry], unpadded: dict[Identity, Entry], exact: Callable[[str, Sizes], Entry]
    ) -> dict[Identity, Entry]:
        """By method and point what would have to be stored to prove the entries from the store alone."""
        found: dict[Identity, Entry] = {}
        for entry in entries:
            for point in self._of(entry, stored=True):
                identity = (entry.method, bucket_name(point))
                if identity not in unpadded and identity not in found:
                    found[identity] = exact(entry.method, point)
        return found

    def smallest(self, entries: Sequence[Entry]) -> dict[str, tuple[Entry, Point]]:
        """By method the smallest point of all, and an entry that it proves."""
        found: dict[str, tuple[Entry, Point]] = {}
        for entry in entries:
            for point in self.of(entry):
                if entry.method not in found or math.prod(point.values()) < math.prod(found[entry.method][1].values()):
                    found[entry.method] = (entry, point)
        return found
