"""A published version as small as it can be: what a catalog and a plan read, and nothing that could be run."""

from __future__ import annotations

import hashlib
from typing import Any

from cache.store import Store
from tests.warmpool.served import BATCH, SEQ, tensor
from warmpool import manifest as stored
from warmpool.manifest import ExecutableSpec, Manifest, MethodSpec, Serving, Target, ToleranceSpec, WeightsSpec

WEIGHTS = b"sixteen bytes..."
PREDICT = MethodSpec(
    programs={"*": "p"},
    symbolic=True,
    inputs=(tensor("ids", "int32", "batch", "seq"), tensor("scale", "float32")),
    outputs=(tensor("doubled", "int8", "batch", "2*seq + 1"),),
)


def put(
    store: Store,
    name: str = "tiny",
    version: str = "1",
    *,
    weights: bytes = WEIGHTS,
    serving: bool = True,
    **changes: Any,
) -> Manifest:
    """Publish; `changes` are to the manifest."""
    digest = hashlib.sha256(weights).hexdigest()
    fields: dict[str, Any] = {
        "model": name,
        "version": version,
        "default_method": "predict",
        "dims": (BATCH, SEQ),
        "methods": {"predict": PREDICT},
        "weights": WeightsSpec(digest=digest, size_bytes=len(weights), tensors=()),
        "tolerance": ToleranceSpec(rtol=0, atol=0),
    }
    manifest = Manifest(**fields | changes)
    store.put(stored.weights_path(digest), weights)
    store.put(stored.manifest_path(name, version), stored.encode(manifest))
    if serving:
        store.put(stored.serving_path(name), stored.encode(Serving(stable=version)))
    return manifest


def executable(key: str, *, minimum: bool = False, **changes: Any) -> ExecutableSpec:
    fields: dict[str, Any] = {
        "method": "predict",
        "bucket": {"batch": 1, "seq": 16},
        "ladder": False,
        "cost_us": 1.0,
        "size_bytes": 1,
    }
    return ExecutableSpec(key=key, minimum=minimum, **fields | changes)


def target(*executables: ExecutableSpec) -> Target:
    return Target(fingerprint={}, executables=executables, proofs=())
