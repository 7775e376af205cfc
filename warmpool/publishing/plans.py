"""Bucket plans that were fitted to traffic: which one holds for a version on one kind of machine.

A plan is part of a target, so a lane never sees one without its executables. Whoever makes a target anew keeps the plan
that it has. A target that is not there yet takes over the plan of the version that is served now, and on another kind
of machine that of the same device with other software: what callers send changes with neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from cache.errors import Damaged, NotStored, Unreadable, Untrusted
from cache.fingerprint import Fingerprint
from cache.records import decoded
from cache.signed_store import SignedStore
from warmpool.manifest import (
    DimSpec,
    Manifest,
    PlanSpec,
    Serving,
    Target,
    bucket_name,
    manifest_path,
    serving_path,
    target_path,
)
from warmpool.publishing.buckets import BUCKETS_MAX, ends

_NO_RECORD = (NotStored, Damaged, Untrusted, Unreadable, msgspec.MsgspecError)


def dims_of(manifest: Manifest, method: str) -> tuple[DimSpec, ...]:
    """The named dimensions of a method's inputs, in the order of the manifest."""
    used = {axis for tensor in manifest.methods[method].inputs for axis in tensor.shape}
    return tuple(dim for dim in manifest.dims if dim.name in used)


def problem_of_plan(dims: Sequence[DimSpec], buckets: Sequence[Mapping[str, int]]) -> str:
    """Why these cannot be the buckets of a method with these dimensions, "" if they can."""
    names = [dim.name for dim in dims]
    for bucket in buckets:
        if list(bucket) != names:
            return f"a bucket has sizes for {', '.join(bucket) or 'nothing'}, needed: {', '.join(names) or 'nothing'}"
        for dim in dims:
            low, high = dim.sizes[0] if dim.batch else 1, dim.sizes[-1]
            if not low <= bucket[dim.name] <= high:
                return f"a bucket has the {dim.name} {bucket[dim.name]}, allowed: {low} to {high}"
    missing = [bucket_name(bucket) for bucket in ends(dims) if bucket not in buckets]
    if missing:
        return f"the bucket {missing[0]} is missing, which every plan has"
    if len({tuple(bucket.values()) for bucket in buckets}) < len(buckets):
        return "it has a bucket twice"
    return f"it has {len(buckets)} buckets, allowed: {BUCKETS_MAX}" if len(buckets) > BUCKETS_MAX else ""


def plans_for(
    store: SignedStore, manifest: Manifest, machine: Fingerprint, *, own: bool, say: Callable[[str], None]
) -> dict[str, PlanSpec]:
    """The plans that hold for a version on this kind of machine, by method.

    Args:
        store: Where targets are.
        manifest: The version's.
        machine: The kind of machine.
        own: Whether what the store has under the version's own name counts.
        say: Told of a plan that cannot be kept.

    Raises:
        StoreUnavailable: The store cannot be read.
    """
    target = next(_targets(store, manifest, machine, own=own), None)
    plans = target.plans_by_method if target else {}
    kept = {}
    for method, plan in plans.items():
        if method not in manifest.methods:
            continue
        problem = problem_of_plan(dims_of(manifest, method), plan.buckets)
        if not manifest.methods[method].symbolic:
            problem = "its program has no symbolic dimensions"
        if problem:
            say(f"{manifest.model}: the fitted plan of {method} is not kept: {problem}")
        else:
            kept[method] = plan
    return kept


def _targets(store: SignedStore, manifest: Manifest, machine: Fingerprint, *, own: bool) -> Iterator[Target]:
    """The targets whose plan may be the version's here, the one that decides first."""
    model, version = manifest.model, manifest.version
    versions = [version] if own else []
    with suppress(*_NO_RECORD):
        versions.append(decoded(store.get(serving_path(model)), Serving).stable)
    for one in versions:
        with suppress(*_NO_RECORD):
            yield decoded(store.get(target_path(model, one, machine.digest)), Target)
    for one in versions:
        for name in store.names(manifest_path(model, one).rpartition("/")[0] + "/targets"):
            with suppress(*_NO_RECORD):
                target = decoded(store.get(target_path(model, one, name.removesuffix(".json"))), Target)
                if target.fingerprint.get("device_kind") == machine.ingredients.get("device_kind"):
                    yield target
