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
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from cache import failures
from cache.ingredients import digest_ingredients
from cache.signed_store import SignedStore
from cache.sweep import Reused
from warmpool.errors import PublishError
from warmpool.manifest import ProofSpec, executable_path, target_path
from warmpool.publishing.artifacts import Artifacts, read_made
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.claims import Begun, Claims, is_passing, share
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Entry
from warmpool.publishing.jobs import Jobs
from warmpool.publishing.kept_answers import KeptAnswers
from warmpool.publishing.known import Known
from warmpool.publishing.machines import Children, Machine, compile_options, worker_threads
from warmpool.publishing.made import How, Made, PlaceMade
from warmpool.publishing.places import Place, ingredients_of, placed
from warmpool.publishing.plans import plans_for
from warmpool.publishing.progress import Progress

_BEGUN_MAX_A_THREAD = 2  # entries begun ahead, so that no thread runs out of work; others can take the rest


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
        how: How it is to be made.
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
        how: How,
    ) -> None:
        assert how.only is None or visible, "of what nobody sees all is made"
        # Under a name of the author's choice something else may have been begun, of which nothing counts.
        trusted = visible or draft.content_named
        stored = plans_for(store, draft.manifest, machine.fingerprint, own=trusted, say=progress.say)
        plans = {method: plan for method, plan in (stored | dict(draft.replan)).items() if plan}
        draft = draft.planned(plans)
        self.draft = draft
        self.machine = machine
        self.children = children
        self.threads = worker_threads(machine.platform, children.at_a_time)
        self.store = store
        self.progress = progress
        self.path = target_path(draft.manifest.model, draft.manifest.version, machine.fingerprint.digest)
        places = placed(draft.entries, machine.fingerprint, primary=machine.primary)
        self.entries = [self._entry(method, bucket, ladder=ladder) for method, bucket, ladder in places]
        self.how = how
        self.artifacts = Artifacts(store, reused, progress.say)
        self.known = Known(
            store,
            self.path,
            machine.fingerprint,
            self.entries,
            [entry.place for entry in self.entries],
            progress.say,
            self.artifacts.has,
            trusted=trusted,
            # Nobody sees a target before its manifest, so until then it can record how far the publish came.
            recording=how.only is not None or (draft.content_named and not visible),
            plans=plans,
            replanned=frozenset(draft.replan),
            needed=frozenset(entry.place for entry in self.entries if entry.bucket.minimum and visible),
        )
        self.compiled: set[str] = set()
        self.failed: dict[Place, str] = {}
        self._left: set[Place] = set()  # places that are still to be done here
        self._begun_s: dict[Place, float] = {}
        self.proved = 0
        self.references = 0

    def make(self) -> Made:
        """Compile, prove and store what is missing; the target itself is left to the caller to store (`Known.write`).

        Raises:
            PublishError: A child failed, or did so in another publish before.
            ProofFailed: An executable does not answer as it must.
        """
        stored = self.artifacts.files(self.entries)
        self.known.read()
        todo = [entry for entry in self._asked() if entry.key not in stored or entry not in self.known]
        missing = {entry.key for entry in todo} - stored.keys()
        if todo:
            self._left = {entry.place for entry in todo}
            self._work(todo, stored)
        taken = len(missing - self.compiled)
        return Made(
            self.known.target(),
            self.known,
            compiled=len(self.compiled),
            taken=taken,
            proved=self.proved,
            references=self.references,
            failed=self.failed,
        )

    def _asked(self) -> list[Entry]:
        if self.how.only is None:
            return self.entries
        lanes = {place.ladder for place in self.how.only}
        asked = {*self.how.only, *(place for place in self.known.lacks() if place.ladder in lanes)}
        return [entry for entry in self.entries if entry.place in asked]

    def _work(self, todo: list[Entry], stored: dict[str, Path]) -> None:
        claims = Claims(
            self.store,
            self._finished_file,
            fingerprint=self.machine.fingerprint.digest,
            limits=self.children.limits,
            retry_failed=self.how.retry_failed,
            say=self.progress.say,
        )
        if self.how.retry_failed:
            for program in {entry.ingredients["program"] for entry in todo}:
                failures.reset(self.store, program, self.machine.fingerprint.digest)
        with ThreadPoolExecutor(self.threads) as executor, claims:
            # A whole target has references of its own as well, with which new weights are proved.
            kept = KeptAnswers(self.store, self.draft, self.machine.platform, used=self.how.only is not None)
            jobs = Jobs(self.draft, self.machine, self.children, executor, self.progress, self.store.trust, kept)
            try:
                jobs.plan(todo, self.entries, stored, self.artifacts.file, self._exact)
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
                begun_max=_BEGUN_MAX_A_THREAD * self.threads + 1,
            )
            self.known.read()  # what others proved may be gone, with a target that was removed
            todo = [entry for entry in todo if entry not in self.known and entry.place not in self.failed]

    def _begin(self, entry: Entry, jobs: Jobs, claims: Claims) -> Begun:
        if entry.ladder and entry.place.other in self._left - self._begun_s.keys():
            return Begun.NOT_YET  # it is compared with that
        if not jobs.has(entry):
            try:
                claimed = claims.claim(entry, jobs.place(entry))
            except PublishError as error:
                self._fail(entry, error)
                self._left.discard(entry.place)
                jobs.skip(f"left out {entry.name}: {error}")
                return Begun.DONE
            if not claimed:
                return Begun.NOT_YET
            if isinstance(claimed, Path) and entry in self.known:
                self._left.discard(entry.place)
                jobs.skip(f"took {entry.name}, which another publish made and proved")
                self._tell(entry)
                return Begun.DONE
            if path := claimed if isinstance(claimed, Path) else self.artifacts.sound_file(entry):
                jobs.take(entry, path)
        self._begun_s[entry.place] = time.monotonic()
        jobs.begin(entry)
        return Begun.HERE

    def _finish(self, entry: Entry, jobs: Jobs, claims: Claims) -> None:
        """Prove and store an entry."""
        self._left.discard(entry.place)
        try:
            self._prove(entry, jobs, claims)
        except PublishError as error:
            self._fail(entry, error)
            self.progress.say(f"left out {entry.name}: {error}")
        else:
            self._tell(entry)
        if claims.holds(entry.key):
            claims.settle(entry.key, made=entry.place not in self.failed)

    def _prove(self, entry: Entry, jobs: Jobs, claims: Claims) -> None:
        try:
            artifact = jobs.artifact(entry)
        except PublishError as error:
            claims.failed(entry.key, error, machinery_alive=self.children.alive)
            raise
        made = b""
        if jobs.compiled(entry) and entry.key not in self.compiled:
            made = read_made(entry, artifact)
        jobs.answers(entry)  # what is wrong with those is no failure of this executable
        try:
            spec, proofs = jobs.tried(entry, sha256(made).hexdigest() if made else "")
        except PublishError as error:
            if self.known.needed:  # of a version that is not published its author sees it, and may try again
                claims.failed(entry.key, error, machinery_alive=self.children.alive)
            raise
        self._put_edges(jobs)
        if made:
            self.store.put(executable_path(entry.key), made)
            self.compiled.add(entry.key)
        proofs += self._alike(entry, jobs)  # it stays where these fail: other weights may need it, proved or not
        self.proved += 1
        self.known.add(entry, spec, proofs)

    def _put_edges(self, jobs: Jobs) -> None:
        while jobs.references.edges:
            edge = jobs.references.edges.pop()
            data = read_made(edge.entry, edge.artifact)
            jobs.try_edge(edge, sha256(data).hexdigest())
            self.store.put(executable_path(edge.entry.key), data)
            self.known.refer(edge.entry.key)

    def _alike(self, entry: Entry, jobs: Jobs) -> list[ProofSpec]:
        """Compare an entry with the one of its bucket in the other lane, if both are in the store by now.

        So whoever is the second to store one of the two compares them, whichever it is. Where both are made here, the
        one of the primary lane is the first.
        """
        machine = self.machine if self.machine.primary else self.how.primary
        if machine is None or not entry.bucket.ladder or not (entry.ladder or machine.platform == "cpu"):
            return []
        if entry.place.other in self._left:
            return []  # that comes later, and is compared then
        other = self._entry(entry.method, entry.bucket, ladder=not entry.ladder, machine=machine)
        own, others = self.artifacts.sound_file(entry), self.artifacts.sound_file(other)
        return jobs.alike(entry, own, other, others, machine) if own and others else []

    def _fail(self, entry: Entry, error: PublishError) -> None:
        """One place stays empty, and the others are made; raises where that is the end."""
        if not self.how.goes_on or not self.children.alive:
            raise error
        self.failed[entry.place] = str(error)
        self._tell(entry, passing=is_passing(error))

    def _tell(self, entry: Entry, *, passing: bool = False) -> None:
        begun_s = self._begun_s.get(entry.place, time.monotonic())
        failure = self.failed.get(entry.place, "")
        lacks = any(place.ladder == entry.ladder for place in self.known.lacks())
        visible = not failure and self.known.recording and not lacks
        self.how.told(PlaceMade(entry.place, entry.key, time.monotonic() - begun_s, failure, visible, passing))

    def _finished_file(self, entry: Entry) -> Path | None:
        """A verified artifact in the store, if others have also recorded its proof where they can."""
        path = self.artifacts.sound_file(entry)
        if path and self.known.recording:
            self.known.read()
            return path if entry in self.known else None
        return path

    def _exact(self, method: str, point: Mapping[str, int]) -> Entry:
        """An exact shape as an entry of its own."""
        sizes = self.draft.subject(method).exact_sizes(point)
        return self._entry(method, Bucket(sizes, minimum=False, ladder=False))

    def _entry(self, method: str, bucket: Bucket, *, ladder: bool = False, machine: Machine | None = None) -> Entry:
        program, machine = self.draft.program(method, bucket).digest, machine or self.machine
        options = compile_options(os.environ)
        ingredients = ingredients_of(program, bucket.sizes, machine.fingerprint, options, ladder=ladder)
        return Entry(method, bucket, digest_ingredients(ingredients), ingredients, ladder)
