"""Makes what one kind of machine needs for a version: compiles only what the store lacks, stores nothing unproved.

An executable is stored as soon as it passed its trial, so that an interrupted publish goes on where it stopped.

Where every executable is in the store and only the weights are new, nothing is compiled at all, no reference either:
the answers of each bucket are then compared with those of the stored executables that need no padding for the same
rows. These were compared with plain JAX when they were made, and weights are arguments to them. Below the smallest
bucket there is none, so the references of those edges are stored as executables too, which no target lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cache.artifact import unpack
from cache.errors import Damaged, Foreign, NotStored, Untrusted
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.signed_store import SignedStore
from warmpool.manifest import ExecutableSpec, ProofSpec, Target, encode, executable_path, target_path
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.draft import Draft
from warmpool.publishing.jobs import Entry, Jobs
from warmpool.publishing.machines import Children, Machine, compile_options, worker_threads
from warmpool.publishing.progress import Progress
from warmpool.publishing.prove import merged


@dataclass(frozen=True, slots=True)
class Made:
    """A target and what it took: how many executables were compiled, and how many proved."""

    target: Target
    path: str
    compiled: int
    proved: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What is proved about this version's executables, by method and key."""

    executables: dict[tuple[str, str], ExecutableSpec] = field(default_factory=dict)
    proofs: list[ProofSpec] = field(default_factory=list)


class TargetMaker:
    """One machine's part of a publish.

    Args:
        draft: The version.
        machine: The kind of machine.
        children: Run the work.
        store: Where executables are, and go to.
        progress: Shows it.
        visible: Whether this very version is published already, for another machine or this one.
    """

    def __init__(
        self,
        draft: Draft,
        machine: Machine,
        children: Children,
        store: SignedStore,
        progress: Progress,
        *,
        visible: bool,
    ) -> None:
        self.draft = draft
        self.machine = machine
        self.children = children
        self.store = store
        self.progress = progress
        self.path = target_path(draft.manifest.model, draft.manifest.version, machine.fingerprint.digest)
        self.entries = [self._entry(*entry) for entry in draft.entries if machine.primary or entry[1].ladder]
        # Under a name of the author's choice something else may have been begun: what is known of that does not count.
        self.trusted = visible or draft.content_named
        # Nobody sees a target before its manifest, so until then it can record how far the publish came.
        self.recording = draft.content_named and not visible

    def make(self) -> Made:
        """Compile, prove and store what is missing; the target itself is left to the caller to store.

        Raises:
            PublishError: A child failed.
            ProofFailed: An executable does not answer as it must.
        """
        stored = self._stored_files()
        known = self._known()
        todo = [
            entry
            for entry in self.entries
            if entry.key not in stored or (entry.method, entry.key) not in known.executables
        ]
        missing = {entry.key for entry in todo} - stored.keys()
        if todo:
            self._work(todo, stored, known)
        return Made(self._target(known), self.path, compiled=len(missing), proved=len(todo))

    def _work(self, todo: list[Entry], stored: dict[str, Path], known: _Known) -> None:
        jobs = Jobs(self.draft, self.machine, self.children, self.progress, self.store.trust, self._exact)
        with ThreadPoolExecutor(worker_threads(self.machine.platform)) as executor:
            try:
                jobs.begin(executor, todo, self.entries, stored, self._stored_file)
                for entry in todo:
                    spec, proofs = jobs.tried(entry)
                    if entry.key not in stored:
                        self.store.put_file(executable_path(entry.key), jobs.artifact(entry))
                    known.executables[entry.method, entry.key] = spec
                    known.proofs.extend(proofs)
                    if self.recording:
                        self.store.put(self.path, encode(self._target(known)))
                for edge, path in jobs.edges:
                    self.store.put_file(executable_path(edge.key), path)
            except BaseException:
                executor.shutdown(wait=False, cancel_futures=True)
                self.children.close()  # ends what still runs, which leaving the block would wait for
                raise

    def _stored_files(self) -> dict[str, Path]:
        """Verified artifacts in the store, by key."""
        found = {entry.key: self._stored_file(entry) for entry in {entry.key: entry for entry in self.entries}.values()}
        return {key: path for key, path in found.items() if path}

    def _stored_file(self, entry: Entry) -> Path | None:
        path = executable_path(entry.key)
        try:
            data = self.store.get(path)
            unpack(data, key=entry.key, trust=self.store.trust, ingredients=entry.ingredients)
            return self.store.local_path(path)
        except NotStored:
            return None
        except (Damaged, Foreign, Untrusted) as error:
            self.progress.say(f"{entry.name}: {error}; it is compiled anew")
            return None

    def _known(self) -> _Known:
        if not self.trusted:
            return _Known()
        try:
            target = msgspec.json.decode(self.store.get(self.path), type=Target)
        except NotStored:
            return _Known()
        except (Damaged, Untrusted, msgspec.MsgspecError) as error:
            self.progress.say(f"{self.path}: it cannot be read ({error}); it is made anew")
            return _Known()
        return _Known({(spec.method, spec.key): spec for spec in target.executables}, list(target.proofs))

    def _target(self, known: _Known) -> Target:
        """The target with what is known by now, in load order."""
        found = [known.executables.get((entry.method, entry.key)) for entry in self.entries]
        return Target(
            fingerprint=dict(self.machine.fingerprint.ingredients),
            executables=tuple(spec for spec in found if spec),
            proofs=merged(known.proofs),
        )

    def _exact(self, method: str, point: Mapping[str, int]) -> Entry:
        """An exact shape as an entry of its own."""
        sizes = self.draft.subject(method).exact_sizes(point)
        return self._entry(method, Bucket(sizes, minimum=False, ladder=False))

    def _entry(self, method: str, bucket: Bucket) -> Entry:
        ingredients = executable_ingredients(
            program=self.draft.program(method, bucket).digest,
            bucket=bucket.sizes,
            fingerprint=self.machine.fingerprint,
            options=compile_options(os.environ),
        )
        return Entry(method, bucket, digest_ingredients(ingredients), ingredients)
