"""Versions of a model that adds up numbers, most of them with something wrong that no publish would let pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cache.artifact import Header, pack
from cache.executable import Runtime, calling_of, serialize
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.store import Store
from warmpool import manifest as stored
from warmpool.manifest import DimSpec, ExecutableSpec, Manifest, MethodSpec, Serving, Target, TensorSpec

MODEL = "sum"
STABLE = "stable"
SCALE = 0.5
STEPS = 400_000  # of a loop that takes some tenths of a millisecond
BUCKETS = [{"batch": batch, "seq": seq} for batch in (1, 4) for seq in (4, 8)]
IDS = TensorSpec(name="ids", dtype="int32", shape=("batch", "seq"), pad=0, low=1, high=9)
TOTAL = TensorSpec(name="total", dtype="float32", shape=("batch",))

Function = Callable[[Any, Any], tuple[Any]]


def _spent(ids: Any, steps: int) -> Any:
    """Zero, after so many steps that no compiler can leave out."""
    counted = jax.lax.fori_loop(0, steps, lambda _, n: n * jnp.uint32(1_664_525) + jnp.uint32(1), jnp.uint32(ids.sum()))
    return jnp.where(counted == jnp.uint32(4_000_000_007), 1.0, 0.0)


def _good(scale: Any, ids: Any) -> tuple[Any]:
    return (ids.sum(-1) * scale + _spent(ids, STEPS),)


def _nan(scale: Any, ids: Any) -> tuple[Any]:
    (total,) = _good(scale, ids)
    return (jnp.where(ids.sum(-1) % 2 == 0, jnp.nan, total),)


def _drifting(scale: Any, ids: Any) -> tuple[Any]:
    return (_good(scale, ids)[0] * 1.01,)


def _slow(scale: Any, ids: Any) -> tuple[Any]:
    return (ids.sum(-1) * scale + _spent(ids, 3 * STEPS),)


def _leaking(scale: Any, ids: Any) -> tuple[Any]:
    """Callers send no zero: what it counts is padding."""
    return (_good(scale, ids)[0] + (ids == 0).sum(-1),)


FUNCTIONS: dict[str, Function] = {
    STABLE: _good,
    "good": _good,
    "nan": _nan,
    "drifting": _drifting,
    "slow": _slow,
    "leaking": _leaking,
    "crashing": _good,  # of these two it is the lane that does what their names say, see `faulty_instance`
    "growing": _good,
}


def expected(ids: np.ndarray) -> np.ndarray:
    """What stable answers."""
    return np.asarray(ids.sum(-1) * np.float32(SCALE), np.float32)


def publish_all(store: Store, versions: Iterable[str] = tuple(FUNCTIONS)) -> None:
    """Compile and store all versions, or these; the stable one is served."""
    runtime = Runtime.open("jax")
    for version in versions:
        _publish(store, runtime.fingerprint(), version, FUNCTIONS[version])
    store.put(stored.serving_path(MODEL), stored.encode(Serving(stable=STABLE)))


def _publish(store: Store, fingerprint: Fingerprint, version: str, function: Function) -> None:
    blob = np.float32(SCALE).tobytes()
    digest = hashlib.sha256(blob).hexdigest()
    program = hashlib.sha256(f"sum {function.__name__}".encode()).hexdigest()
    manifest = Manifest(
        model=MODEL,
        version=version,
        default_method="predict",
        dims=(DimSpec(name="batch", max=8, sizes=(1, 4), batch=True), DimSpec(name="seq", max=8, sizes=(4, 8))),
        methods={"predict": MethodSpec(programs={"*": program}, symbolic=True, inputs=(IDS,), outputs=(TOTAL,))},
        weights=stored.WeightsSpec(
            digest=digest,
            size_bytes=len(blob),
            tensors=(stored.WeightSpec(name="scale", dtype="float32", shape=(), offset=0),),
        ),
        tolerance=stored.ToleranceSpec(rtol=1e-5, atol=1e-5),
    )
    specs = [_executable(store, fingerprint, program, function, bucket) for bucket in BUCKETS]
    target = Target(
        fingerprint=dict(fingerprint.ingredients),
        executables=tuple(sorted(specs, key=lambda spec: not spec.minimum)),
        proofs=(),
    )
    store.put(stored.program_path(program), pack(Header(key=program, kind="program", ingredients={}), b"not looked at"))
    store.put(stored.weights_path(digest), blob)
    store.put(stored.target_path(MODEL, version, fingerprint.digest), stored.encode(target))
    store.put(stored.manifest_path(MODEL, version), stored.encode(manifest))


def _executable(
    store: Store, fingerprint: Fingerprint, program: str, function: Function, bucket: dict[str, int]
) -> ExecutableSpec:
    ingredients = executable_ingredients(program=program, bucket=bucket, fingerprint=fingerprint, options={})
    key = digest_ingredients(ingredients)
    path = stored.executable_path(key)
    if key not in store.names("executables"):
        shapes = (
            jax.ShapeDtypeStruct((), np.float32),
            jax.ShapeDtypeStruct((bucket["batch"], bucket["seq"]), np.int32),
        )
        lowered = jax.jit(function, keep_unused=True).lower(*shapes)
        compiled = lowered.compile()
        header = Header(key=key, ingredients=ingredients, calling=calling_of(lowered, compiled))
        store.put(path, pack(header, serialize(compiled)))
    return ExecutableSpec(
        key=key,
        method="predict",
        bucket=bucket,
        minimum=bucket == {"batch": 1, "seq": 8},
        ladder=bucket["seq"] == 8,
        cost_us=1000.0 + bucket["batch"] * bucket["seq"],
        size_bytes=len(store.get(path)),
    )
