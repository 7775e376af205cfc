"""A published version made for one kind of machine out of the store alone: what it lacks there, or another plan."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from cache.signed_store import SignedStore
from cache.sweep import Reused
from cache.wanted import settle
from warmpool.manifest import Manifest, PlanSpec
from warmpool.publishing.machines import Children, Machine
from warmpool.publishing.progress import Progress
from warmpool.publishing.stored_draft import stored_draft
from warmpool.publishing.target import Made, TargetMaker


def make_from_store(
    store: SignedStore,
    manifest: Manifest,
    machine: Machine,
    children: Children,
    progress: Progress,
    *,
    why: str,
    replan: Mapping[str, PlanSpec | None] = MappingProxyType({}),
    retry_failed: bool = False,
) -> Made:
    """Compile and prove what is missing, then put the target, which is when lanes may see it.

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

    Raises:
        PublishError: Something failed; ProofFailed if an executable does not answer as it must.
        CacheError: The store cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="warmpool-from-store-") as scratch:
        draft = replace(stored_draft(store, manifest, Path(scratch)), replan=replan)
        reused = Reused(store.bottom)
        maker = TargetMaker(
            draft, machine, children, store, progress, visible=True, reused=reused, retry_failed=retry_failed
        )
        made = maker.make()
        changed = made.known.write()
    for spec in made.target.executables:
        settle(store, spec.key)
    if made.compiled or (replan and changed):
        said = {"model": manifest.model, "version": manifest.version, "fingerprint": machine.fingerprint.digest}
        store.audit.record("publish", path=made.known.path, reason=why, **said)
    return made
