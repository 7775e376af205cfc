"""From a declared method to portable programs: StableHLO with symbolic dimensions, lowered for every platform.

A function that refuses symbolic dimensions is exported once a bucket instead. Everything that only a trace can tell is
checked here, and said in words of the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.export
import msgspec
from numpy.typing import NDArray

from warmpool.errors import DeclarationError
from warmpool.manifest import MethodSpec, TensorSpec, bucket_name
from warmpool.model import Dim, LengthMask, Model, Tensor, misdeclared
from warmpool.publishing.affine import fitted
from warmpool.publishing.buckets import plan
from warmpool.publishing.flat import FlatMethod
from warmpool.publishing.modelfile import described
from warmpool.publishing.params import Params
from warmpool.publishing.program import Program, program_of
from warmpool.publishing.traced import check_jaxpr
from warmpool.symbolic import compiled

PLATFORMS = ("cpu", "cuda", "tpu")
ANY_BUCKET = "*"

Sizes = Mapping[str, int]
Author = Callable[[Sequence[NDArray[Any]]], list[NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported method.

    Attributes:
        spec: What the manifest says of it.
        programs: By bucket name; the one entry "*" where dimensions are symbolic.
        notes: What its author should know: symbolic dimensions refused, platforms left out.
        program_at: Makes the program for any sizes up to the largest, for references at exact shapes.
        author: The author's own function under `jax.jit` on the CPU of this process, not exported, on its own weights;
            None where there is but the program, which was compared with it when it was published first.
    """

    spec: MethodSpec
    programs: dict[str, Program]
    notes: tuple[str, ...]
    program_at: Callable[[Sizes], Program] = field(repr=False)
    author: Author | None = field(repr=False)


def export_method(
    model: Model, method: str, params: Params, *, probes: Iterable[Sizes] = (), required: Sequence[str] = ("cpu",)
) -> Exported:
    """Export with symbolic dimensions, or, where the function refuses them, once a bucket.

    Args:
        model: The model.
        method: Which of its methods.
        params: The model's params.
        probes: Sizes beside the buckets' at which output shapes are looked at, where dimensions are not symbolic.
        required: Platforms that may not be left out.

    Raises:
        DeclarationError: The method cannot be a program.
    """
    if jax.config.jax_enable_x64:
        raise misdeclared("64-bit mode is on (jax_enable_x64); switch it off, executables are 32-bit", model=model.name)
    flat = FlatMethod(model, method, params)
    lowering = _Lowering(flat, required)
    try:
        exported = lowering.export(flat.symbols())
    except DeclarationError:
        raise
    except Exception as refusal:  # noqa: BLE001  an author's function may raise anything
        return _per_bucket(lowering, model, method, probes, refusal)
    program = program_of(exported)
    outputs = tuple(
        _output(flat, name, aval.dtype.name, tuple(_axis(dim) for dim in aval.shape))
        for name, aval in zip(flat.output_names, exported.out_avals, strict=True)
    )
    spec = _method_spec(flat, {ANY_BUCKET: program}, outputs, symbolic=True)
    return Exported(spec, {ANY_BUCKET: program}, tuple(lowering.notes), lambda _: program, flat.on_cpu)


class _Lowering:
    """Checks and lowers one method, for as many platforms as it can be lowered for."""

    def __init__(self, flat: FlatMethod, required: Sequence[str]) -> None:
        self.flat = flat
        self.required = required
        self.platforms: tuple[str, ...] = PLATFORMS
        self.notes: list[str] = []

    def export(self, sizes: Mapping[str, Any]) -> jax.export.Exported:
        arguments = self.flat.arguments(sizes)
        check_jaxpr(jax.make_jaxpr(self.flat.fresh())(*arguments), self.flat.where)
        try:
            return self._lowered(arguments, self.platforms)
        except Exception as error:
            reasons = self._refusals(arguments)
            if not reasons or set(reasons) == set(self.platforms):
                raise
            self._leave_out(reasons, error)
            return self._lowered(arguments, self.platforms)

    def _lowered(self, arguments: tuple[jax.ShapeDtypeStruct, ...], platforms: Sequence[str]) -> jax.export.Exported:
        return jax.export.export(jax.jit(self.flat.fresh(), keep_unused=True), platforms=platforms)(*arguments)

    def _refusals(self, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> dict[str, str]:
        """The platforms it cannot be lowered for, with the reason."""
        reasons = {}
        for platform in self.platforms:
            try:
                self._lowered(arguments, (platform,))
            except Exception as error:  # noqa: BLE001  lowering rules raise what they like
                reasons[platform] = described(error)
        return reasons

    def _leave_out(self, reasons: Mapping[str, str], error: Exception) -> None:
        for platform, reason in reasons.items():
            if platform in self.required:
                problem = f"it cannot be lowered for {platform}, which it is published for: {reason}"
                raise misdeclared(problem, **self.flat.where) from error
            self.notes.append(f"left out {platform}, which it cannot be lowered for: {reason}")
        self.platforms = tuple(platform for platform in self.platforms if platform not in reasons)


def _per_bucket(
    lowering: _Lowering, model: Model, method: str, probes: Iterable[Sizes], refusal: Exception
) -> Exported:
    flat = lowering.flat
    buckets = [bucket.sizes for bucket in plan(model, method)]
    if not flat.dims:
        raise misdeclared(f"it cannot be exported: {described(refusal)}", **flat.where) from refusal

    programs: dict[str, Program] = {}

    def program_at(sizes: Sizes) -> Program:
        name = bucket_name(dict(sizes))
        if name not in programs:
            programs[name] = exported_at(sizes)
        return programs[name]

    def exported_at(sizes: Sizes) -> Program:
        try:
            return program_of(lowering.export(sizes))
        except DeclarationError:
            raise
        except Exception as error:
            where = {**flat.where, "dimension": ", ".join(sizes)}
            legal = f"it fails at {bucket_name(dict(sizes))}, which callers may send"
            raise misdeclared(f"{legal}: {described(error)}", **where) from error

    planned = {bucket_name(sizes): program_at(sizes) for sizes in buckets}
    samples = [(sizes, _shapes(flat, sizes)) for sizes in (*buckets, *probes)]
    spec = _method_spec(flat, planned, _fitted_outputs(flat, samples), symbolic=False)
    count = f"{len(buckets)} programs instead of one, one a bucket"
    note = f"it refuses symbolic dimensions, so there are {count}: {described(refusal)}"
    return Exported(spec, planned, (note, *lowering.notes), program_at, flat.on_cpu)


def _shapes(flat: FlatMethod, sizes: Sizes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Output name to dtype and shape at concrete sizes."""
    try:
        results = jax.eval_shape(flat.fresh(), *flat.arguments(sizes))
    except DeclarationError:
        raise
    except Exception as error:
        problem = f"it fails at {bucket_name(dict(sizes))}, which callers may send: {described(error)}"
        raise misdeclared(problem, **flat.where) from error
    return {name: (one.dtype.name, one.shape) for name, one in zip(flat.output_names, results, strict=True)}


def _fitted_outputs(
    flat: FlatMethod, samples: Sequence[tuple[Sizes, dict[str, tuple[str, tuple[int, ...]]]]]
) -> tuple[TensorSpec, ...]:
    _, first = samples[0]
    kinds = {name: (dtype, len(shape)) for name, (dtype, shape) in first.items()}
    for sizes, found in samples:
        if {name: (dtype, len(shape)) for name, (dtype, shape) in found.items()} != kinds:
            changed = f"outputs change name, dtype or rank with the shape, at {bucket_name(dict(sizes))}"
            raise misdeclared(f"{changed}; return the same ones", **flat.where)
    return tuple(
        _output(flat, name, dtype, tuple(_fitted_axis(flat, name, axis, samples) for axis in range(rank)))
        for name, (dtype, rank) in kinds.items()
    )


def _fitted_axis(flat: FlatMethod, name: str, axis: int, samples: Sequence[tuple[Sizes, Any]]) -> int | str:
    found = [(sizes, shapes[name][1][axis]) for sizes, shapes in samples]
    expression = fitted(found)
    if expression is None:
        seen = ", ".join(f"{size} at {bucket_name(dict(sizes))}" for sizes, size in found[:3])
        problem = f"axis {axis} is {seen}; without symbolic dimensions it may only be a sum of multiples of dimensions"
        raise misdeclared(problem, **flat.where, output=name)
    return expression


def _axis(dim: Any) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _output(flat: FlatMethod, name: str, dtype: str, shape: tuple[int | str, ...]) -> TensorSpec:
    where = {**flat.where, "output": name}
    batch = next((dim.name for dim in flat.dims if dim.batch), None)
    if batch is not None and shape[:1] != (batch,):
        problem = f"its shape is {_shown(shape)}, but axis 0 must be the batch dimension; return one entry a row"
        raise misdeclared(problem, **where, dimension=batch)
    for axis in shape:
        if isinstance(axis, str):
            try:
                compiled(axis)
            except ValueError as error:
                raise misdeclared(f"its shape {_shown(shape)} is not understood: {error}", **where) from error
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def _method_spec(
    flat: FlatMethod, programs: dict[str, Program], outputs: tuple[TensorSpec, ...], *, symbolic: bool
) -> MethodSpec:
    return MethodSpec(
        programs={bucket: program.digest for bucket, program in programs.items()},
        symbolic=symbolic,
        inputs=tuple(_input(name, tensor) for name, tensor in flat.inputs.items()),
        outputs=outputs,
    )


def _input(name: str, tensor: Tensor) -> TensorSpec:
    shape = tuple(dim.name if isinstance(dim, Dim) else dim for dim in tensor.dims)
    return TensorSpec(
        name=name,
        dtype=tensor.dtype,
        shape=shape,
        pad=tensor.pad,
        low=tensor.low,
        high=tensor.high,
        length_mask=True if isinstance(tensor, LengthMask) else msgspec.UNSET,
    )


def _shown(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
