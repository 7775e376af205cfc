"""A published version made for one kind of machine out of the store alone: what it lacks there, or another plan."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from cache.signed_store import SignedStore
from cache.sweep import Reused
from cache.wanted import settle
from warmpool.manifest import Manifest, PlanSpec
from warmpool.publishing.machines import Children, Machine
from warmpool.publishing.made import How, Made, PlaceMade
from warmpool.publishing.places import Place
from warmpool.publishing.progress import Progress
from warmpool.publishing.stored_draft import stored_draft
from warmpool.publishing.target import TargetMaker


def make_from_store(  # noqa: PLR0913  # each is a word of its own in what is asked for
    store: SignedStore,
    manifest: Manifest,
    machine: Machine,
    children: Children,
    progress: Progress,
    *,
    why: str,
    replan: Mapping[str, PlanSpec | None] = MappingProxyType({}),
    retry_failed: bool = False,
    only: Collection[Place] | None = None,
    told: Callable[[PlaceMade], None] = lambda _: None,
    primary: Machine | None = None,
) -> Made:
    """Compile and prove what is missing, and put the target, which is when lanes may see it.

    What fails leaves its place empty, and its failure is recorded for all who would try it next; the others are made.
    But another plan is put whole, or not at all. No target is put without the minimum set of every method.

    Args:
        store: Where the version is.
        manifest: The version's.
        machine: The kind of machine, which this one is.
        children: Run the work.
        progress: Shows it.
        why: What an audit log says of it.
        replan: Bucket plans that hold from now on, by method; None: the manifest's. All executables of these methods
            are proved and measured anew, as those that are there already may have more to pad than before.
        retry_failed: Whether what failed to compile before is compiled again.
        only: The places to make, and the minimum sets where the target has not all of them; each is stored in the
            target as soon as it is proved. None: all, and the target is stored at the end.
        told: How the work for a place ended, as soon as it has; in this thread.
        primary: The primary lane's kind of machine, where this is the CPU beside it: the two lanes are compared.

    Raises:
        PublishError: Nothing more can be made here; of another plan: something failed, and it is ProofFailed if an
            executable does not answer as it must.
        CacheError: The store cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="warmpool-from-store-") as scratch:
        draft = replace(stored_draft(store, manifest, Path(scratch)), replan=replan)
        reused = Reused(store.bottom)
        how = How(retry_failed=retry_failed, goes_on=not replan, only=only, told=told, primary=primary)
        maker = TargetMaker(draft, machine, children, store, progress, visible=True, reused=reused, how=how)
        made = maker.make()
        changed = made.known.write()
    for spec in made.target.executables:
        if only is None or Place.of(spec) in only:
            settle(store, spec.key)
    if made.compiled or (replan and changed):
        said = {"model": manifest.model, "version": manifest.version, "fingerprint": machine.fingerprint.digest}
        store.audit.record("publish", path=made.known.path, reason=why, **said)
    return made
