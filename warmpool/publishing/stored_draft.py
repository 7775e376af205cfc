"""A published version as a draft again: what a machine of another kind needs to compile it, without its author's code.

Programs, weights and manifest come out of the store. A method that refused symbolic dimensions has programs for its
buckets and no others, which is not enough to prove them with: such a version has to be published from its author's
file.
"""

from __future__ import annotations

from pathlib import Path

from cache.errors import Damaged
from cache.signed_store import SignedStore
from warmpool import manifest as stored
from warmpool.errors import PublishError
from warmpool.manifest import Manifest, MethodSpec, encode
from warmpool.publishing.buckets import buckets_over, in_load_order
from warmpool.publishing.draft import Draft
from warmpool.publishing.export import ANY_BUCKET, Exported
from warmpool.publishing.program import Program, read_program
from warmpool.publishing.subject import Subject
from warmpool.weights import digest_file


def stored_draft(store: SignedStore, manifest: Manifest, folder: Path) -> Draft:
    """The draft of a version.

    Args:
        store: Where the version is.
        manifest: The version's own.
        folder: An empty folder.

    Raises:
        PublishError: It can only be published from its author's file.
        CacheError: Its programs or weights are not there, or not sound.
    """
    exported = {method: _exported(store, manifest, method, spec) for method, spec in manifest.methods.items()}
    (folder / "weights").symlink_to(_weights_file(store, manifest.weights.digest))
    plans = {method: buckets_over(list(Subject(manifest, method).dims.values())) for method in manifest.methods}
    draft = Draft(manifest, content_named=False, entries=in_load_order(plans), exported=exported, folder=folder)
    draft.manifest_file.write_bytes(encode(manifest))
    return draft


def _weights_file(store: SignedStore, digest: str) -> Path:
    file = store.local_path(stored.weights_path(digest))
    if (found := digest_file(file)) != digest:
        raise Damaged(f"weights {digest[:16]}", f"their digest is {found[:16]}")
    return file


def _exported(store: SignedStore, manifest: Manifest, method: str, spec: MethodSpec) -> Exported:
    if not spec.symbolic:
        raise PublishError(
            f"model {manifest.model!r}, method {method!r} was exported once a bucket, which is not enough to prove it "
            "here: publish the model from its file on this machine"
        )
    program = _program(store, spec.programs[ANY_BUCKET])
    return Exported(spec, {ANY_BUCKET: program}, notes=(), program_at=lambda _: program, author=None)


def _program(store: SignedStore, digest: str) -> Program:
    data = store.get(stored.program_path(digest))
    return Program(digest, read_program(data, digest).platforms, data)
