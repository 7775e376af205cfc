"""Makes what one kind of machine needs for a version: compiles only what the store lacks, stores nothing unproved.

An executable is stored as soon as it passed its trial, so that an interrupted publish goes on where it stopped. Several
publishes that lack the same ones share the work (`warmpool.publishing.claims`).

Where every executable is in the store and only the weights are new, nothing is compiled at all, no reference either:
the answers of each bucket are then compared with those of the stored executables that need no padding for the same
rows. These were compared with plain JAX when they were made, and weights are arguments to them. Below the smallest
bucket there is none, so the references of those edges are stored as executables too, which serve nothing. They are
stored before what they prove, so that nothing counts as proved that could not be proved so again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cache.artifact import unpack
from cache.errors import Damaged, Foreign, NotStored, Untrusted
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from cache.sweep import Reused
from warmpool.errors import PublishError
from warmpool.manifest import Target, bucket_name, executable_path, target_path
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.claims import Begun, Claims, share
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Entry
from warmpool.publishing.jobs import Jobs
from warmpool.publishing.known import Known
from warmpool.publishing.machines import Children, Machine, compile_options, worker_threads
from warmpool.publishing.plans import plans_for
from warmpool.publishing.progress import Progress

_BEGUN_MAX_A_THREAD = 2  # entries begun ahead, so that no thread runs out of work; others can take the rest


@dataclass(frozen=True, slots=True)
class Made:
    """A target and what it took: executables compiled here, compiled by others meanwhile, and proved here.

    `references` were compiled here too, to prove them with.
    """

    target: Target
    known: Known
    compiled: int
    taken: int
    proved: int
    references: int


class TargetMaker:
    """One machine's part of a publish.

    Args:
        draft: The version.
        machine: The kind of machine.
        children: Run the work.
        store: Where executables are, and go to.
        progress: Shows it.
        visible: Whether this very version is published already, for another machine or this one.
        reused: Told of every executable that is used again.
        retry_failed: Whether what failed to compile before is compiled again.
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
        reused: Reused,
        retry_failed: bool = False,
    ) -> None:
        # Under a name of the author's choice something else may have been begun, of which nothing counts.
        trusted = visible or draft.content_named
        stored = plans_for(store, draft.manifest, machine.fingerprint, own=trusted, say=progress.say)
        plans = {method: plan for method, plan in (stored | dict(draft.replan)).items() if plan}
        draft = draft.planned(plans)
        self.draft = draft
        self.machine = machine
        self.children = children
        self.store = store
        self.progress = progress
        self.path = target_path(draft.manifest.model, draft.manifest.version, machine.fingerprint.digest)
        self.entries = [self._entry(*entry) for entry in draft.entries if machine.primary or entry[1].ladder]
        self.retry_failed = retry_failed
        self.reused = reused
        self.known = Known(
            store,
            self.path,
            machine.fingerprint,
            self.entries,
            [(method, bucket_name(bucket.sizes)) for method, bucket in draft.entries],
            progress.say,
            self._is_sound,
            trusted=trusted,
            # Nobody sees a target before its manifest, so until then it can record how far the publish came.
            recording=draft.content_named and not visible,
            plans=plans,
            replanned=frozenset(draft.replan),
        )
        self.compiled: set[str] = set()
        self.proved = 0
        self.references = 0

    def make(self) -> Made:
        """Compile, prove and store what is missing; the target itself is left to the caller to store (`Known.write`).

        Raises:
            PublishError: A child failed, or did so in another publish before.
            ProofFailed: An executable does not answer as it must.
        """
        stored = self._stored_files()
        self.known.read()
        todo = [entry for entry in self.entries if entry.key not in stored or entry not in self.known]
        missing = {entry.key for entry in todo} - stored.keys()
        if todo:
            self._work(todo, stored)
        taken = len(missing - self.compiled)
        return Made(
            self.known.target(),
            self.known,
            compiled=len(self.compiled),
            taken=taken,
            proved=self.proved,
            references=self.references,
        )

    def _work(self, todo: list[Entry], stored: dict[str, Path]) -> None:
        claims = Claims(
            self.store,
            self._finished_file,
            fingerprint=self.machine.fingerprint.digest,
            limits=self.children.limits,
            retry_failed=self.retry_failed,
            say=self.progress.say,
        )
        with ThreadPoolExecutor(worker_threads(self.machine.platform)) as executor, claims:
            jobs = Jobs(self.draft, self.machine, self.children, executor, self.progress, self.store.trust)
            try:
                jobs.plan(todo, self.entries, stored, self._stored_file, self._exact)
                for key in jobs.references.edges_found:
                    self.known.refer(key)
                self._share(todo, jobs, claims)
                jobs.end()
                self.references = jobs.references.compiled
            except BaseException:
                executor.shutdown(wait=False, cancel_futures=True)
                self.children.close()  # ends what still runs, which leaving the block would wait for
                raise

    def _share(self, todo: list[Entry], jobs: Jobs, claims: Claims) -> None:
        while todo:
            share(
                todo,
                lambda entry: self._begin(entry, jobs, claims),
                lambda entry: self._finish(entry, jobs, claims),
                claims.wait,
                begun_max=_BEGUN_MAX_A_THREAD * worker_threads(self.machine.platform) + 1,
            )
            self.known.read()
            todo = [entry for entry in todo if entry not in self.known]  # of others, in a target that was removed

    def _begin(self, entry: Entry, jobs: Jobs, claims: Claims) -> Begun:
        if not jobs.has(entry):
            claimed = claims.claim(entry, jobs.place(entry))
            if not claimed:
                return Begun.NOT_YET
            if isinstance(claimed, Path) and entry in self.known:
                jobs.skip(entry)
                return Begun.DONE
            if path := claimed if isinstance(claimed, Path) else self._sound_file(entry):
                jobs.take(entry, path)
        jobs.begin(entry)
        return Begun.HERE

    def _finish(self, entry: Entry, jobs: Jobs, claims: Claims) -> None:
        """Prove and store an entry."""
        try:
            artifact = jobs.artifact(entry)
        except PublishError as error:
            claims.failed(entry.key, error, machinery_alive=self.children.alive)
            raise
        made = b""
        if jobs.compiled(entry) and entry.key not in self.compiled:
            made = _read_made(entry, artifact)
        spec, proofs = jobs.tried(entry, sha256(made).hexdigest() if made else "")
        self.proved += 1
        while jobs.references.edges:
            edge = jobs.references.edges.pop()
            data = _read_made(edge.entry, edge.artifact)
            jobs.try_edge(edge, sha256(data).hexdigest())
            self.store.put(executable_path(edge.entry.key), data)
            self.known.refer(edge.entry.key)
        if made:
            self.store.put(executable_path(entry.key), made)
            self.compiled.add(entry.key)
        self.known.add(entry, spec, proofs)
        if claims.holds(entry.key):
            claims.settle(entry.key, made=True)

    def _finished_file(self, entry: Entry) -> Path | None:
        """A verified artifact in the store, if others have also recorded its proof where they can."""
        path = self._sound_file(entry)
        if path and self.known.recording:
            self.known.read()
            return path if entry in self.known else None
        return path

    def _stored_files(self) -> dict[str, Path]:
        """Verified artifacts in the store, by key."""
        found = {entry.key: self._stored_file(entry) for entry in {entry.key: entry for entry in self.entries}.values()}
        return {key: path for key, path in found.items() if path}

    def _stored_file(self, entry: Entry) -> Path | None:
        try:
            return self._verified(entry)
        except (Damaged, Foreign, Untrusted) as error:
            self.progress.say(f"{entry.name}: {error}; it is compiled anew")
            return None

    def _sound_file(self, entry: Entry) -> Path | None:
        with suppress(Damaged, Foreign, Untrusted):  # which was said when it was looked for first
            return self._verified(entry)
        return None

    def _verified(self, entry: Entry) -> Path | None:
        path = executable_path(entry.key)
        try:
            unpack(self.store.get(path), key=entry.key, trust=self.store.trust, ingredients=entry.ingredients)
            self.reused.keep(path)
            return self.store.local_path(path)
        except NotStored:
            return None

    def _is_sound(self, key: str) -> bool:
        """Whether an executable that is none of our entries is in the store."""
        try:
            unpack(self.store.get(executable_path(key)), key=key, kind="executable", trust=self.store.trust)
            self.reused.keep(executable_path(key))
        except (NotStored, Damaged, Foreign, Untrusted):
            return False
        return True

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


def _read_made(entry: Entry, file: Path) -> bytes:
    """The artifact that a child wrote, read once: what is checked here and tried is what is signed.

    Raises:
        PublishError: It is not what the child was to make.
    """
    data = file.read_bytes()
    try:
        unpack(data, key=entry.key, kind="executable", ingredients=entry.ingredients, trust=ANYONE)
    except (Damaged, Foreign) as error:
        raise PublishError(f"{entry.name}: what was compiled cannot be stored: {error}") from error
    return data
