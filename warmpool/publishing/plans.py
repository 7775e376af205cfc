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
from warmpool.arena import regions
from warmpool.manifest import (
    DimSpec,
    Manifest,
    MethodSpec,
    PlanSpec,
    Serving,
    Target,
    bucket_name,
    manifest_path,
    serving_path,
    target_path,
)
from warmpool.publishing.buckets import BUCKETS_MAX, ends
from warmpool.soundness import arena_bytes
from warmpool.symbolic import shape_of

_NO_RECORD = (NotStored, Damaged, Untrusted, Unreadable, msgspec.MsgspecError)


def dims_of(manifest: Manifest, method: str) -> tuple[DimSpec, ...]:
    """The named dimensions of a method's inputs, in the order of the manifest."""
    used = {axis for tensor in manifest.methods[method].inputs for axis in tensor.shape}
    return tuple(dim for dim in manifest.dims if dim.name in used)


def problem_of_plan(manifest: Manifest, method: str, buckets: Sequence[Mapping[str, int]]) -> str:
    """Why these cannot be the buckets of a method, "" if they can."""
    spec, dims = manifest.methods[method], dims_of(manifest, method)
    if not spec.symbolic:
        return "its program has no symbolic dimensions"
    if problem := next(filter(None, (_bucket_problem(spec, dims, bucket) for bucket in buckets)), ""):
        return problem
    missing = [bucket_name(bucket) for bucket in ends(dims) if bucket not in buckets]
    if missing:
        return f"the bucket {missing[0]} is missing, which every plan has"
    if len({tuple(bucket.values()) for bucket in buckets}) < len(buckets):
        return "it has a bucket twice"
    return f"it has {len(buckets)} buckets, allowed: {BUCKETS_MAX}" if len(buckets) > BUCKETS_MAX else ""


def _bucket_problem(spec: MethodSpec, dims: Sequence[DimSpec], bucket: Mapping[str, int]) -> str:
    names = [dim.name for dim in dims]
    if list(bucket) != names:
        return f"a bucket has sizes for {', '.join(bucket) or 'nothing'}, needed: {', '.join(names) or 'nothing'}"
    for dim in dims:
        low, high = dim.sizes[0] if dim.batch else 1, dim.sizes[-1]
        if not low <= bucket[dim.name] <= high:
            return f"a bucket has the {dim.name} {bucket[dim.name]}, allowed: {low} to {high}"
    problem = _tensors_problem(spec, dims, bucket)
    return f"the bucket {bucket_name(dict(bucket))} has {problem}" if problem else ""


def _tensors_problem(spec: MethodSpec, dims: Sequence[DimSpec], bucket: Mapping[str, int]) -> str:
    """Why a lane has no place for a bucket's tensors, "" if it has: it is made for the sizes of the manifest."""
    shapes = [(tensor.dtype, shape_of(tensor.shape, bucket)) for tensor in (*spec.inputs, *spec.outputs)]
    if any(size < 0 for _, shape in shapes for size in shape):
        return "an output of less than no size"
    end = max((region.end for region in regions(shapes)), default=0)
    room = arena_bytes(spec, {dim.name: dim for dim in dims})
    return f"tensors of {end} bytes, allowed: {room}" if end > room else ""


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
        if problem := problem_of_plan(manifest, method, plan.buckets):
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
