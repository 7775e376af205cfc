"""A version before it is published: all that the declaration decides, exported and written to a scratch folder."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from warmpool.errors import PublishError
from warmpool.manifest import DimSpec, Manifest, MethodSpec, PlanSpec, ToleranceSpec, WeightsSpec, encode
from warmpool.model import Dim, Model
from warmpool.publishing.buckets import Bucket, buckets_of, buckets_over, in_load_order, plan, plan_all
from warmpool.publishing.export import Exported, export_method
from warmpool.publishing.params import materialise
from warmpool.publishing.points import edge_points
from warmpool.publishing.program import Program
from warmpool.publishing.subject import Subject
from warmpool.weights import write_weights

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VERSION_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Draft:
    """What will be published, and where its files are until then.

    Attributes:
        manifest: The version's manifest.
        content_named: Whether the version is named after its content, so that nothing else can ever have its name.
        entries: Method and bucket of every executable, in load order.
        exported: By method.
        folder: The scratch folder.
        plans: By method, where its buckets are others than the manifest's.
        replan: Plans that are others from now on, whatever a store says; None: the manifest's own.
    """

    manifest: Manifest
    content_named: bool
    entries: tuple[tuple[str, Bucket], ...]
    exported: dict[str, Exported]
    folder: Path
    plans: Mapping[str, PlanSpec] = field(default_factory=dict)
    replan: Mapping[str, PlanSpec | None] = field(default_factory=dict)

    @property
    def manifest_file(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def weights_file(self) -> Path:
        return self.folder / "weights"

    def subject(self, method: str) -> Subject:
        """A method, its dimensions with the sizes that it is planned for."""
        plan = self.plans.get(method)
        if plan is None:
            return Subject(self.manifest, method)
        sizes = {
            dim.name: {bucket[dim.name] for bucket in plan.buckets if dim.name in bucket} for dim in self.manifest.dims
        }
        dims = (
            msgspec.structs.replace(dim, sizes=tuple(sorted(sizes[dim.name])) or dim.sizes)
            for dim in self.manifest.dims
        )
        return Subject(msgspec.structs.replace(self.manifest, dims=tuple(dims)), method)

    def planned(self, plans: Mapping[str, PlanSpec]) -> Draft:
        """The same version with these plans, and the manifest's for methods that have none."""
        buckets = {}
        for method in self.manifest.methods:
            dims = list(Subject(self.manifest, method).dims.values())
            buckets[method] = buckets_of(dims, plans[method].buckets) if method in plans else buckets_over(dims)
        return replace(self, plans=plans, entries=in_load_order(buckets))

    def program(self, method: str, bucket: Bucket) -> Program:
        """The program that this bucket, or an exact shape, is compiled from."""
        return self.exported[method].program_at(bucket.sizes)

    def program_file(self, program: Program) -> Path:
        """A file with the program's stored bytes."""
        path = self.folder / f"program-{program.digest}"
        if not path.exists():
            unfinished = path.with_suffix(f".{threading.get_ident()}")
            unfinished.write_bytes(program.stored)
            unfinished.replace(path)
        return path


def make_draft(
    model: Model, folder: Path, *, version: str | None, required: Sequence[str], say: Callable[[str], None]
) -> Draft:
    """Materialise the params, export every method, and write weights, programs and manifest.

    Args:
        model: The declared model.
        folder: An empty folder.
        version: The version's name; by default the first hex digits of a digest over everything in the manifest.
        required: Platforms that every method has to be lowered for.
        say: Told what the author should know.

    Raises:
        DeclarationError: The model cannot be exported.
    """
    if version is not None and not VERSION.fullmatch(version):
        raise PublishError(f"version {version!r} is not allowed; use a name that matches {VERSION.pattern}")
    entries = plan_all(model)
    params = materialise(model)
    weights = write_weights(folder / "weights", params.weights.items())
    exported = {}
    for method in model.methods:
        exported[method] = export_method(model, method, params, probes=_probes(model, method), required=required)
        for note in exported[method].notes:
            say(f"{model.name}.{method}: {note}")
    specs = {method: one.spec for method, one in exported.items()}
    unnamed = _manifest(model, "", specs, weights)
    content = hashlib.sha256(encode(unnamed)).hexdigest()[:_VERSION_DIGITS]
    manifest = msgspec.structs.replace(unnamed, version=version or content)
    draft = Draft(manifest, version is None, entries, exported, folder)
    draft.manifest_file.write_bytes(encode(manifest))
    return draft


def _probes(model: Model, method: str) -> list[dict[str, int]]:
    """Exact sizes at which the method will be proved: all but those that its program decides."""
    single = {dim.name: 1 for dim in model.method_dims(method) if dim.batch}
    planned = [
        {name: size for name, size in bucket.sizes.items() if name not in single} for bucket in plan(model, method)
    ]
    return [single | point for bucket in planned for point in edge_points(bucket, planned)]


def _manifest(model: Model, version: str, methods: dict[str, MethodSpec], weights: WeightsSpec) -> Manifest:
    return Manifest(
        model=model.name,
        version=version,
        default_method=model.default_method,
        dims=tuple(_dim(dim) for dim in model.dims),
        methods=methods,
        weights=weights,
        tolerance=ToleranceSpec(rtol=model.tolerance.rtol, atol=model.tolerance.atol),
    )


def _dim(dim: Dim) -> DimSpec:
    return DimSpec(name=dim.name, max=dim.max, sizes=dim.sizes, batch=dim.batch)
