"""Versions of a model that multiplies, each by a number of its own: an answer tells which version it is of.

They differ in what a new version may differ in: in weights alone, so that executables are shared; in the program; in
the shapes that they take.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cache.artifact import Header, pack
from cache.executable import Runtime, calling_of, serialize
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.store import Store
from warmpool import manifest as stored
from warmpool.manifest import DimSpec, ExecutableSpec, Manifest, MethodSpec, Serving, Target, TensorSpec

MODEL = "line"
SPEC = TensorSpec(name="x", dtype="float32", shape=("batch", "width"), pad=0.0)


@dataclass(frozen=True, slots=True)
class Line:
    """A version: y = factor * x + shift, where the factor is its weight and the shift is part of its program.

    More weights than one are all the same, and make it heavy.
    """

    factor: float
    shift: float = 0.0
    batch: tuple[int, ...] = (1, 4)
    width: tuple[int, ...] = (4, 16)
    weights: tuple[int, ...] = ()  # their shape

    @property
    def buckets(self) -> list[dict[str, int]]:
        return [{"batch": batch, "width": width} for batch, width in itertools.product(self.batch, self.width)]

    @property
    def program(self) -> str:
        return hashlib.sha256(f"line {self.shift} {self.weights}".encode()).hexdigest()

    @property
    def factors(self) -> np.ndarray:
        return np.full(self.weights, self.factor, np.float32)

    def expected(self, x: np.ndarray) -> np.ndarray:
        return np.float32(self.factor) * x + np.float32(self.shift)


VERSIONS = {
    "1": Line(1.0),
    "2": Line(2.0),  # other weights
    "3": Line(3.0, shift=1000.0),  # another program
    "4": Line(4.0, batch=(1, 64), width=(4, 4096)),  # larger shapes, beyond the arena of the others
}


def publish(store: Store, version: str, line: Line, model: str = MODEL) -> Manifest:
    """Compile and store a version, and say nothing of it being served."""
    runtime = Runtime.open("jax")
    fingerprint = runtime.fingerprint()
    blob = line.factors.tobytes()
    digest = hashlib.sha256(blob).hexdigest()
    manifest = Manifest(
        model=model,
        version=version,
        default_method="predict",
        dims=(
            DimSpec(name="batch", max=line.batch[-1] * 2, sizes=line.batch, batch=True),
            DimSpec(name="width", max=line.width[-1], sizes=line.width),
        ),
        methods={
            "predict": MethodSpec(programs={"*": line.program}, symbolic=True, inputs=(SPEC,), outputs=(_output(),))
        },
        weights=stored.WeightsSpec(
            digest=digest,
            size_bytes=len(blob),
            tensors=(stored.WeightSpec(name="factor", dtype="float32", shape=line.weights, offset=0),),
        ),
        tolerance=stored.ToleranceSpec(rtol=0, atol=0),
    )
    specs = tuple(_executable(store, fingerprint, line, bucket) for bucket in line.buckets)
    specs = tuple(sorted(specs, key=lambda spec: not spec.minimum))
    header = Header(key=line.program, kind="program", ingredients={})
    store.put(stored.program_path(line.program), pack(header, b"no lane looks into it"))
    store.put(stored.weights_path(digest), blob)
    target = Target(fingerprint=dict(fingerprint.ingredients), executables=specs, proofs=())
    store.put(stored.target_path(model, version, fingerprint.digest), stored.encode(target))
    store.put(stored.manifest_path(model, version), stored.encode(manifest))
    return manifest


def serve(store: Store, stable: str, model: str = MODEL, **fields: Any) -> None:
    """Say what is served."""
    store.put(stored.serving_path(model), stored.encode(Serving(stable=stable, **fields)))


def _output() -> TensorSpec:
    return TensorSpec(name="y", dtype="float32", shape=("batch", "width"))


def _executable(store: Store, fingerprint: Fingerprint, line: Line, bucket: dict[str, int]) -> ExecutableSpec:
    ingredients = executable_ingredients(program=line.program, bucket=bucket, fingerprint=fingerprint, options={})
    key = digest_ingredients(ingredients)
    path = stored.executable_path(key)
    if key not in store.names("executables"):
        arguments = (
            jax.ShapeDtypeStruct(line.weights, np.dtype(np.float32)),
            jax.ShapeDtypeStruct((bucket["batch"], bucket["width"]), np.dtype(np.float32)),
        )
        shift = np.float32(line.shift)
        lowered = jax.jit(lambda factors, x: (factors.reshape(-1)[0] * x + shift,), keep_unused=True).lower(*arguments)
        compiled = lowered.compile()
        store.put(
            path,
            pack(Header(key=key, ingredients=ingredients, calling=calling_of(lowered, compiled)), serialize(compiled)),
        )
    widest = bucket["width"] == line.width[-1]
    return ExecutableSpec(
        key=key,
        method="predict",
        bucket=bucket,
        minimum=widest and bucket["batch"] == line.batch[0],
        ladder=widest,
        cost_us=100.0 + bucket["batch"] * bucket["width"] / 100,
        size_bytes=len(store.get(path)),
    )
