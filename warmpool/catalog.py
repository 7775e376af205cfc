"""What an instance serves: the versions of every model in its store, read without jax.

Reading is I/O on small files; the records it gives are plain values that the rest of the front computes with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import msgspec

from cache.errors import CacheError, Damaged, NotStored, StoreUnavailable, told
from cache.records import decoded
from cache.store import Store
from warmpool import manifest as stored
from warmpool.manifest import DimSpec, ExecutableSpec, Manifest, MethodSpec, Serving, Target, TensorSpec
from warmpool.soundness import arena_bytes, problem_of
from warmpool.symbolic import shape_of
from warmpool.weights import WeightsFile

log = logging.getLogger(__name__)

Tensors = tuple[tuple[str, tuple[int, ...]], ...]  # (dtype name, shape) of each, in the program's order


@dataclass(frozen=True, slots=True, eq=False)
class ServedMethod:
    """One method of a served version. Compared by identity: it is the key of queues and tables.

    Attributes:
        mergeable: Whether rows of different requests may share a batch: every tensor has the batch dimension first.
        elements_max: Elements of all inputs together, every named dimension at its declared maximum.
    """

    model: str
    version: str
    name: str
    spec: MethodSpec
    dims: dict[str, DimSpec]
    batch: str | None
    mergeable: bool = field(init=False)
    elements_max: int = field(init=False)

    def __post_init__(self) -> None:
        tensors = (*self.spec.inputs, *self.spec.outputs)
        mergeable = self.batch is not None and all(tensor.shape[:1] == (self.batch,) for tensor in tensors)
        largest = {name: dim.max for name, dim in self.dims.items()}
        object.__setattr__(self, "mergeable", mergeable)  # every request asks for both: they are worked out once
        object.__setattr__(self, "elements_max", sum(prod(shape) for _, shape in self.inputs_of(largest)))

    def inputs_of(self, sizes: dict[str, int]) -> Tensors:
        return _tensors(self.spec.inputs, sizes)

    def outputs_of(self, sizes: dict[str, int]) -> Tensors:
        return _tensors(self.spec.outputs, sizes)


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One served version, with where a lane finds its files."""

    manifest: Manifest
    manifest_file: Path
    weights_file: Path
    methods: dict[str, ServedMethod]

    @property
    def key(self) -> str:
        return f"{self.manifest.model}/{self.manifest.version}"

    def method(self, name: str | None) -> ServedMethod | None:
        return self.methods.get(name or self.manifest.default_method)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is served.

    Attributes:
        models: By name, the version that gets every request of which nothing else is said.
        others: By key, further versions that lanes are to hold.
        retiring: By key, those of them that no request gets any more, and of which something waits or runs.
        problems: By name, what is wrong with a model that cannot be served.
        named: By name, the version that the store says is stable, which may be loaded later, or never.
    """

    models: dict[str, ServedModel] = field(default_factory=dict)
    others: dict[str, ServedModel] = field(default_factory=dict)
    retiring: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, ServedModel]:
        """All that lanes are to hold, by key."""
        return {model.key: model for model in (*self.models.values(), *self.others.values())}

    def stable(self, name: str) -> str:
        """The version of a model that gets what names none, or is to while there is none; "" where nobody knows."""
        current = self.models.get(name)
        return current.manifest.version if current else self.named.get(name, "")

    @property
    def arena_bytes(self) -> int:
        """Shared memory that the largest bucket of any method needs for its inputs and outputs."""
        methods = (method for model in self.versions.values() for method in model.methods.values())
        return max((arena_bytes(method.spec, method.dims) for method in methods), default=0)


def read_catalog(store: Store) -> Catalog:
    """Every model's stable version. A model that cannot be read is a problem of its own and disturbs no other."""
    catalog = Catalog()
    for name in store.names("models"):
        try:
            if serving := read_serving(store, name):
                catalog.models[name] = read_version(store, name, serving.stable)
        except Exception as error:  # noqa: BLE001  it is that model's problem
            catalog.problems[name] = reason_of(error, name)
    return catalog


def reason_of(error: Exception, name: str) -> str:
    """Why a model or version cannot be read, as anybody may be told; the log says more where that is not all."""
    known = isinstance(error, CacheError | msgspec.MsgspecError | ValueError)
    log.error("model cannot be served", extra={"model": name, "reason": str(error)}, exc_info=None if known else error)
    problem = str(error) if known else f"it cannot be read ({type(error).__name__})"
    return told(error) if isinstance(error, CacheError) else problem


def read_serving(store: Store, name: str) -> Serving | None:
    """Which versions of a model are served; None if nobody has said so. Raises Damaged, Untrusted, StoreUnavailable."""
    path = stored.serving_path(name)
    try:
        return _decoded(store.get(path), Serving, path)
    except NotStored:
        return None


def read_target(store: Store, model: ServedModel, fingerprint_digest: str) -> Target | None:
    """What this kind of machine has for the model, or None if it was never published for it.

    Raises:
        StoreUnavailable: the store is away, or has lost the version: which says nothing of this kind of machine.
        Damaged: it cannot be read, or has an executable for which the manifest has no method, dimension or room.
    """
    path = stored.target_path(model.manifest.model, model.manifest.version, fingerprint_digest)
    try:
        target = _decoded(store.get(path), Target, path)
    except NotStored:
        if not _is_there(store, stored.manifest_path(model.manifest.model, model.manifest.version)):
            gone = f"{path}: the whole version is not there now"
            raise StoreUnavailable(gone, told=gone) from None
        return None
    for spec in target.executables:
        if not _fits(model.methods.get(spec.method), spec.bucket):
            raise Damaged(path, f"its {spec.method!r} {stored.bucket_name(spec.bucket)} does not fit the manifest")
    return target


def _is_there(store: Store, path: str) -> bool:
    try:
        store.get(path, bytes_max=1)
    except NotStored:
        return False
    return True


def _fits(method: ServedMethod | None, bucket: dict[str, int]) -> bool:
    if method is None or bucket.keys() != method.dims.keys():
        return False
    return all(1 <= size <= method.dims[name].sizes[-1] for name, size in bucket.items())


def verify_weights(model: ServedModel, known: Callable[[str], str | None] = lambda _: None) -> str:
    """Read the weights blob and compare its digest, which also brings it into the page cache; the file's identity.

    Args:
        model: Whose.
        known: Gives the digest of a file by its identity, if it was read already.

    Raises:
        Damaged: its content is another one.
    """
    with WeightsFile(model.weights_file) as file:
        identity = file.identity
        found = known(identity) or file.digest()
    if found != model.manifest.weights.digest:
        raise Damaged(
            f"weights of {model.key}", f"their digest is {found[:16]}, not {model.manifest.weights.digest[:16]}"
        )
    return identity


def load_order(targets: dict[str, Target]) -> list[tuple[str, ExecutableSpec]]:
    """(model key, executable), the minimum sets of all models first, then the models in turn, each in its own order."""
    minimum = [(key, spec) for key, target in targets.items() for spec in target.executables if spec.minimum]
    rest = [[(key, spec) for spec in target.executables if not spec.minimum] for key, target in targets.items()]
    longest = max((len(specs) for specs in rest), default=0)
    return minimum + [specs[turn] for turn in range(longest) for specs in rest if turn < len(specs)]


def read_version(store: Store, name: str, version: str) -> ServedModel:
    """One version of a model.

    Raises:
        CacheError: Its manifest or weights are not there, damaged or not trusted.
        ValueError, ArithmeticError: The manifest says what nobody can compute with.
    """
    path = stored.manifest_path(name, version)
    manifest = _decoded(store.get(path), Manifest, path)
    if (manifest.model, manifest.version) != (name, version):
        raise Damaged(path, f"it is that of {manifest.model}/{manifest.version}")
    if problem := problem_of(manifest):
        raise Damaged(path, problem)
    dims = {dim.name: dim for dim in manifest.dims}
    batch = next((dim.name for dim in manifest.dims if dim.batch), None)
    methods = {method: _served_method(manifest, method, spec, dims, batch) for method, spec in manifest.methods.items()}
    return ServedModel(
        manifest=manifest,
        manifest_file=store.local_path(path),
        weights_file=store.local_path(stored.weights_path(manifest.weights.digest)),
        methods=methods,
    )


def _served_method(
    manifest: Manifest, name: str, spec: MethodSpec, dims: dict[str, DimSpec], batch: str | None
) -> ServedMethod:
    used = {axis for tensor in spec.inputs for axis in tensor.shape if isinstance(axis, str)}
    return ServedMethod(
        model=manifest.model,
        version=manifest.version,
        name=name,
        spec=spec,
        dims={name: dim for name, dim in dims.items() if name in used},
        batch=batch if batch in used else None,
    )


def _decoded[R: stored.Record](data: bytes, kind: type[R], path: str) -> R:
    try:
        record = decoded(data, kind)
    except msgspec.MsgspecError as error:
        raise Damaged(path, str(error)) from error
    found = getattr(record, "format", stored.FORMAT)
    if found != stored.FORMAT:
        raise Damaged(path, f"its format is {found}, this release reads {stored.FORMAT}")
    return record


def _tensors(specs: tuple[TensorSpec, ...], sizes: dict[str, int]) -> Tensors:
    return tuple((spec.dtype, shape_of(spec.shape, sizes)) for spec in specs)
