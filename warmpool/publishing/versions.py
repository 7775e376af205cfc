"""How a version gets into a store: what it needs first, what makes it visible last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from cache.audit import Fields
from cache.errors import Damaged, Foreign, NotStored, Untrusted
from cache.records import decoded
from cache.signed_store import SignedStore
from cache.store import Store
from cache.sweep import Reused
from warmpool import manifest as stored
from warmpool.errors import PublishError
from warmpool.manifest import Manifest, Serving, encode
from warmpool.publishing.draft import Draft
from warmpool.publishing.known import Known
from warmpool.publishing.program import read_program
from warmpool.weights import digest_file

WRITES_MAX = 8
_UNREADABLE = ""  # the generation of nothing


def is_published(store: SignedStore, draft: Draft, say: Callable[[str], None]) -> bool:
    """Whether the version is visible already.

    Raises:
        PublishError: It is, with other content.
        Strange: The model is somebody else's, whose key is not known here.
    """
    path = stored.manifest_path(draft.manifest.model, draft.manifest.version)
    for document in (stored.serving_path(draft.manifest.model), path):
        store.require_ours(document)
    try:
        found = decoded(store.get(path), Manifest)
    except NotStored:
        return False
    except (Damaged, Untrusted, msgspec.MsgspecError) as error:
        say(f"{path}: it cannot be read ({error}); it is made anew")
        return False
    differ = [name for name in Manifest.__struct_fields__ if getattr(found, name) != getattr(draft.manifest, name)]
    if differ:
        version = f"version {draft.manifest.version!r} of {draft.manifest.model!r}"
        change = "a version never changes: choose another --version"
        raise PublishError(f"{version} is published with other {', '.join(differ)}; {change}")
    return True


def put_programs(store: Store, draft: Draft, reused: Reused) -> None:
    """Store every program that is not there, whole."""
    for exported in draft.exported.values():
        for program in exported.programs.values():
            path = stored.program_path(program.digest)
            try:
                read_program(store.get(path), program.digest)
                reused.keep(path)
            except (NotStored, Damaged, Foreign, Untrusted):
                store.put(path, program.stored)


def put_version(
    store: SignedStore,
    draft: Draft,
    targets: Sequence[Known],
    reused: Reused,
    say: Callable[[str], None],
    *,
    serve: bool = True,
) -> None:
    """Store weights and targets, then the manifest, which makes the version visible, then that it is served, if it is.

    Raises:
        PublishError: Somebody else published it meanwhile, with other content.
    """
    manifest = draft.manifest
    _put_weights(store, draft, reused)
    if is_published(store, draft, say):  # by now: what its targets say counts
        for known in targets:
            known.trusted = True
    new = [known for known in targets if known.write()]
    with suppress(NotStored):  # which is found out when all is stored
        for known in targets:
            reused.keep(known.path)
    if _put_manifest(store, draft, say):
        new = list(targets)
    said: Fields = {
        "model": manifest.model,
        "version": manifest.version,
        "key_id": store.signer.key_id if store.signer else "",
    }
    for known in new:
        store.audit.record("publish", **(said | {"fingerprint": known.fingerprint.digest}))
    if serve:
        _serve(store, manifest, reused, said)


def _put_manifest(store: SignedStore, draft: Draft, say: Callable[[str], None]) -> bool:
    """Store it unless it is there, which never changes; whether it was not."""
    path = stored.manifest_path(draft.manifest.model, draft.manifest.version)
    if store.put_if(path, encode(draft.manifest), None) is not None:
        return True
    if is_published(store, draft, say):
        return False
    store.put(path, encode(draft.manifest))  # what lies there cannot be read
    return True


def missing(store: SignedStore, draft: Draft, targets: Sequence[Known]) -> set[str]:
    """What a version that was just made visible needs, and what was removed before anybody could know that."""
    manifest = draft.manifest
    paths = {stored.weights_path(manifest.weights.digest), stored.manifest_path(manifest.model, manifest.version)}
    paths.update(stored.program_path(digest) for spec in manifest.methods.values() for digest in spec.programs.values())
    for known in targets:
        target = known.target()
        paths.add(known.path)
        paths.update(stored.executable_path(spec.key) for spec in target.executables)
        paths.update(map(stored.executable_path, target.references))
    folders = {path.rpartition("/")[0] for path in paths}
    return paths - {f"{folder}/{name}" for folder in folders for name in store.bottom.names(folder)}


def _put_weights(store: Store, draft: Draft, reused: Reused) -> None:
    digest = draft.manifest.weights.digest
    path = stored.weights_path(digest)
    try:
        if digest_file(store.local_path(path)) == digest:
            reused.keep(path)
            return
    except (NotStored, Damaged):
        pass
    store.put_file(path, draft.weights_file)


def _serve(store: SignedStore, manifest: Manifest, reused: Reused, said: Fields) -> None:
    """Let the version be stable, unless it is. The one before stays warm where it is, so that going back is no load.

    A rollout that is under way ends by that: what its canary was is what it was before, published and not served.

    Raises:
        PublishError: What is served changes each time that it is about to be written.
    """
    path = stored.serving_path(manifest.model)
    for _ in range(WRITES_MAX):
        before, generation = _served(store, path)
        if before == manifest.version:
            reused.keep(path)
            return
        record = encode(Serving(stable=manifest.version, previous=before))
        if generation == _UNREADABLE:
            store.put(path, record)
        elif store.put_if(path, record, generation) is None:
            continue
        store.audit.record("promote", **(said | {"before": before}))
        return
    raise PublishError(f"{path} was changed by others {WRITES_MAX} times while it was read; publish again")


def _served(store: SignedStore, path: str) -> tuple[str, str | None]:
    """The version that is stable now, "" if there is none that could be, and the generation of what says so."""
    try:
        data, generation = store.get_versioned(path)
        return decoded(data, Serving).stable, generation
    except NotStored:
        return "", None
    except (Damaged, Untrusted, msgspec.MsgspecError):
        return "", _UNREADABLE
