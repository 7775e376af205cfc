"""A small model in a store, made of `cache` and manifests alone, with results that can be computed by hand.

Its methods between them have what a front must be able to serve: one and two named dimensions, no batch dimension, a
scalar input and output, an output whose length is an expression, every kind of datatype, numbers that are not finite,
and one whose run time the caller chooses.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache as memoise
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from cache.artifact import Header, pack
from cache.executable import Runtime, calling_of, serialize
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.store import Store
from warmpool import manifest as stored
from warmpool.manifest import DimSpec, ExecutableSpec, Manifest, MethodSpec, Target, TensorSpec

BATCH = DimSpec(name="batch", max=20, sizes=(1, 2, 4, 8), batch=True)
SEQ = DimSpec(name="seq", max=16, sizes=(4, 8, 16))
LENGTH = DimSpec(name="length", max=10, sizes=(4, 10))
DIMS = (BATCH, SEQ, LENGTH)
IDS_MAX = 9

MATRIX = np.array([[1, 2, 3], [-4, 5, 0], [7, 0, -1], [2, 2, 2]], np.float32)
BIAS = np.array([10, 0, -5], np.float32)
WEIGHTS = {"bias": BIAS, "matrix": MATRIX}

Inputs = dict[str, Any]


def _predict(params: Inputs, x: Any) -> Inputs:
    return {"y": x @ params["matrix"] + params["bias"], "sum": x.sum(-1)}


def _tokens(params: Inputs, ids: Any, mask: Any) -> Inputs:
    """Relies on its pads, 0 for the mask; `doubled` is a zero and then every id twice."""
    return {
        "total": (ids * mask).sum(-1),
        "doubled": jnp.pad(jnp.repeat(ids, 2, axis=1), ((0, 0), (1, 0))),
    }


def _scale(params: Inputs, values: Any, factor: Any) -> Inputs:
    return {"scaled": values * factor, "total": values.sum()}


def _kinds(params: Inputs, flag: Any, byte: Any, half: Any, brain: Any) -> Inputs:
    return {"flag": ~flag, "byte": byte + 1, "half": half * 2, "brain": brain * 2}


def _invert(params: Inputs, x: Any) -> Any:
    return {"output": 1 / x}


def _count(params: Inputs, steps: Any) -> Inputs:
    """Counts to the largest of `steps`, one loop iteration a step: a run that takes as long as its caller says."""

    def step(index: Any, counted: Any) -> Any:
        return counted + (index < steps)

    return {"counted": jax.lax.fori_loop(0, steps.max(), step, jnp.zeros_like(steps))}


@dataclass(frozen=True, eq=False)
class TinyMethod:
    """A method as an author writes it, and how its manifest describes it."""

    function: Callable[..., Inputs]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def dims(self) -> list[DimSpec]:
        used = {axis for spec in self.inputs for axis in spec.shape}
        return [dim for dim in DIMS if dim.name in used]

    @property
    def buckets(self) -> list[dict[str, int]]:
        names = [dim.name for dim in self.dims]
        return [dict(zip(names, sizes, strict=True)) for sizes in itertools.product(*(dim.sizes for dim in self.dims))]

    def flat(self, *arguments: Any) -> tuple[Any, ...]:
        """The function as programs are: weights in order, then inputs in order; results in order."""
        names = [spec.name for spec in self.inputs]
        params = dict(zip(WEIGHTS, arguments[: len(WEIGHTS)], strict=True))
        results = self.function(params, **dict(zip(names, arguments[len(WEIGHTS) :], strict=True)))
        return tuple(results[spec.name] for spec in self.outputs)

    def reference(self, **inputs: Any) -> dict[str, np.ndarray]:
        """What plain `jax.jit` gives at the exact shape."""
        arrays = [np.asarray(inputs[spec.name], _dtype(spec.dtype)) for spec in self.inputs]
        results = _jitted(self)(*WEIGHTS.values(), *arrays)
        return {spec.name: np.asarray(result) for spec, result in zip(self.outputs, results, strict=True)}


@memoise
def _jitted(method: TinyMethod) -> Callable[..., tuple[Any, ...]]:
    return jax.jit(method.flat)


def _spec(name: str, dtype: str, *shape: int | str, **bounds: Any) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, **bounds)


METHODS = {
    "predict": TinyMethod(
        _predict,
        (_spec("x", "float32", "batch", 4),),
        (_spec("y", "float32", "batch", 3), _spec("sum", "float32", "batch")),
    ),
    "tokens": TinyMethod(
        _tokens,
        (
            _spec("ids", "int32", "batch", "seq", pad=0, low=0, high=IDS_MAX),
            _spec("mask", "int32", "batch", "seq", pad=0, low=0, high=1, length_mask=True),
        ),
        (_spec("total", "int32", "batch"), _spec("doubled", "int32", "batch", "2*seq + 1")),
    ),
    "scale": TinyMethod(
        _scale,
        (_spec("values", "float32", "length", pad=0.0), _spec("factor", "float32")),
        (_spec("scaled", "float32", "length"), _spec("total", "float32")),
    ),
    "kinds": TinyMethod(
        _kinds,
        (
            _spec("flag", "bool", "batch"),
            _spec("byte", "uint8", "batch"),
            _spec("half", "float16", "batch"),
            _spec("brain", "bfloat16", "batch"),
        ),
        (
            _spec("flag", "bool", "batch"),
            _spec("byte", "uint8", "batch"),
            _spec("half", "float16", "batch"),
            _spec("brain", "bfloat16", "batch"),
        ),
    ),
    "invert": TinyMethod(_invert, (_spec("x", "float32", "batch"),), (_spec("output", "float32", "batch"),)),
    "count": TinyMethod(_count, (_spec("steps", "int32", "batch", low=0),), (_spec("counted", "int32", "batch"),)),
}


def publish_tiny(
    store: Store,
    model: str = "tiny",
    methods: tuple[str, ...] = tuple(METHODS),
    given: Mapping[str, np.ndarray] = MappingProxyType(WEIGHTS),
) -> Fingerprint:
    """Store these methods as version 1 of a model; gives the fingerprint of their executables, which are compiled once.

    The minimum set of a method covers one row of any length; the CPU lane's ladder adds as many rows as fit.
    """
    runtime = Runtime.open("jax")
    fingerprint = runtime.fingerprint()
    blob, weights = _weights(given)
    store.put(stored.weights_path(weights.digest), blob)
    for name in methods:
        program = Header(key=_digest(name), kind="program", ingredients={})
        store.put(stored.program_path(_digest(name)), pack(program, b"nobody looks into it"))
    executables = [
        _executable(store, fingerprint, name, bucket) for name in methods for bucket in METHODS[name].buckets
    ]
    executables.sort(key=lambda spec: not spec.minimum)
    manifest = Manifest(
        model=model,
        version="1",
        default_method=methods[0],
        dims=DIMS,
        methods={
            name: MethodSpec(
                programs={"*": _digest(name)},
                symbolic=True,
                inputs=METHODS[name].inputs,
                outputs=METHODS[name].outputs,
            )
            for name in methods
        },
        weights=weights,
        tolerance=stored.ToleranceSpec(rtol=1e-5, atol=1e-5),
    )
    target = Target(fingerprint=dict(fingerprint.ingredients), executables=tuple(executables), proofs=())
    store.put(stored.target_path(model, "1", fingerprint.digest), stored.encode(target))
    store.put(stored.manifest_path(model, "1"), stored.encode(manifest))
    store.put(stored.serving_path(model), stored.encode(stored.Serving(stable="1")))
    return fingerprint


def take_executables(
    store: Store, before: Store, fingerprint: Fingerprint, methods: tuple[str, ...] = tuple(METHODS)
) -> None:
    """Put those of another store that are of these methods into one, in which `publish_tiny` then compiles nothing."""
    for name in methods:
        for path in (executable_file(name, bucket, fingerprint) for bucket in METHODS[name].buckets):
            store.put(path, before.get(path))


def executable_file(name: str, bucket: dict[str, int], fingerprint: Fingerprint) -> str:
    """The store path of one executable."""
    return stored.executable_path(digest_ingredients(_ingredients(name, bucket, fingerprint)))


def _executable(store: Store, fingerprint: Fingerprint, name: str, bucket: dict[str, int]) -> ExecutableSpec:
    method = METHODS[name]
    largest = {dim.name: dim.sizes[-1] for dim in method.dims}
    ingredients = _ingredients(name, bucket, fingerprint)
    key = digest_ingredients(ingredients)
    path = stored.executable_path(key)
    folder, _, file = path.rpartition("/")
    if file not in store.names(folder):
        arguments = [
            *WEIGHTS.values(),
            *(
                jax.ShapeDtypeStruct([bucket.get(str(axis), axis) for axis in spec.shape], _dtype(spec.dtype))
                for spec in method.inputs
            ),
        ]
        lowered = jax.jit(method.flat, keep_unused=True).lower(*arguments)
        compiled = lowered.compile()
        header = Header(key=key, ingredients=ingredients, calling=calling_of(lowered, compiled))
        store.put(path, pack(header, serialize(compiled)))
    elements = int(np.prod(list(bucket.values())))
    return ExecutableSpec(
        key=key,
        method=name,
        bucket=bucket,
        minimum=bucket == {**largest, "batch": 1} or ("batch" not in bucket and bucket == largest),
        ladder={**bucket, "batch": 0} == {**largest, "batch": 0} and bucket.get("batch", 1) in {1, BATCH.sizes[-1]},
        cost_us=100.0 + elements,  # a call costs much and an element little, so sharing a batch always pays
        size_bytes=len(store.get(path)),
    )


def _ingredients(name: str, bucket: dict[str, int], fingerprint: Fingerprint) -> dict[str, str]:
    return executable_ingredients(program=_digest(name), bucket=bucket, fingerprint=fingerprint, options={})


def _weights(given: Mapping[str, np.ndarray]) -> tuple[bytes, stored.WeightsSpec]:
    blob = b""
    tensors = []
    for name, array in given.items():
        blob += bytes(-len(blob) % stored.ALIGN_BYTES)
        tensors.append(stored.WeightSpec(name=name, dtype="float32", shape=array.shape, offset=len(blob)))
        blob += array.tobytes()
    digest = hashlib.sha256(blob).hexdigest()
    return blob, stored.WeightsSpec(digest=digest, size_bytes=len(blob), tensors=tuple(tensors))


def _digest(name: str) -> str:
    return hashlib.sha256(f"tiny {name}".encode()).hexdigest()


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
