"""What a store says about one published version of a model.

The manifest is everything an instance needs to serve a version and nothing that depends on the machine: methods,
buckets, weights. A target says what one kind of machine (one fingerprint) has for that version: executables, their
measured cost, the proofs. Publishing the same version on another kind of machine adds a target and changes nothing
else.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

FORMAT = 1

Scalar = bool | int | float | None


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every stored record: unknown fields are errors, so a newer format is never half understood."""


class DimSpec(Record, frozen=True, kw_only=True):
    """A named dimension: `max` is the caller's limit, `sizes` the bucket sizes in ascending order."""

    name: str
    max: int
    sizes: tuple[int, ...]
    batch: bool = False


class TensorSpec(Record, frozen=True, kw_only=True):
    """One input or output.

    `shape` holds an int, or for inputs a dimension's name, or for outputs an expression over names (see
    `warmpool.symbolic`). `dtype` is numpy's name. `pad` is what padding is filled with (None: zeros, any would do).
    `low` and `high` are inclusive bounds on values, None for none. `length_mask`: a caller may leave it out, and it is
    then ones; where it is not so, nothing is written of it, so that a version keeps its digest and older releases read
    it.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    pad: Scalar = None
    low: Scalar = None
    high: Scalar = None
    length_mask: Literal[True] | msgspec.UnsetType = msgspec.UNSET

    @property
    def may_be_left_out(self) -> bool:
        return self.length_mask is True


class MethodSpec(Record, frozen=True, kw_only=True):
    """One method. `symbolic` is False where the function refused symbolic dimensions.

    `programs` maps a bucket's name to a program digest; a symbolic method has the single entry "*".
    """

    programs: dict[str, str]
    symbolic: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def required(self) -> list[str]:
        """The inputs that no caller may leave out."""
        return [tensor.name for tensor in self.inputs if not tensor.may_be_left_out]

    def program(self, bucket: dict[str, int]) -> str:
        """The digest of the program that a bucket's executable is compiled from, "" if there is none."""
        return self.programs.get("*" if self.symbolic else bucket_name(bucket), "")


class WeightSpec(Record, frozen=True, kw_only=True):
    """Where one weight tensor lies in the weights blob (`offset` in bytes, a multiple of `ALIGN_BYTES`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class WeightsSpec(Record, frozen=True, kw_only=True):
    """The weights blob: raw little-endian tensors at aligned offsets, addressed by its SHA-256."""

    digest: str
    size_bytes: int
    tensors: tuple[WeightSpec, ...]


class ToleranceSpec(Record, frozen=True, kw_only=True):
    """|a - b| <= atol + rtol * |b|."""

    rtol: float
    atol: float


class Manifest(Record, frozen=True, kw_only=True):
    """One version of one model."""

    format: int = FORMAT
    model: str
    version: str
    default_method: str
    dims: tuple[DimSpec, ...]
    methods: dict[str, MethodSpec]
    weights: WeightsSpec
    tolerance: ToleranceSpec


class MemorySpec(Record, frozen=True, kw_only=True):
    """Bytes that an executable takes, 0 for what is not known: `code` while it is loaded, the others while it runs.

    `arguments` counts the weights too. All is XLA's own account, but for the code on a CPU, of which it has none: there
    it is what a process grew by when it loaded it.
    """

    code: int = 0
    temp: int = 0
    arguments: int = 0
    outputs: int = 0


class ExecutableSpec(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One executable of a target, in load order.

    `minimum`: needed before the instance is ready. `ladder`: the CPU lane holds it. `cpu_lane_only`: and the primary
    lane does not, even where that is a CPU too; it was compiled fast for the CPU lane. Targets of before had no such
    ones: a `ladder` executable without it is for both lanes. `cost_us`: run time measured at publish. `memory`:
    measured then, too; targets of before have none. What is as usual is not written, so they are written as they were.
    """

    key: str
    method: str
    bucket: dict[str, int]
    minimum: bool
    ladder: bool
    cost_us: float
    size_bytes: int
    memory: MemorySpec | None = None
    cpu_lane_only: bool = False

    def is_for(self, *, ladder_only: bool) -> bool:
        """Whether a lane holds it: the CPU lane, which holds the ladder alone, or the primary one."""
        return self.ladder if ladder_only else not self.cpu_lane_only


class ProofSpec(Record, frozen=True, kw_only=True):
    """A proof made at publish: the largest difference seen, over how many comparisons."""

    method: str
    kind: str
    cases: int
    error_max: float


class PlanSpec(Record, frozen=True, kw_only=True):
    """The buckets of a method on one kind of machine, in the place of all combinations of the manifest's sizes.

    `buckets`: each a size for every dimension of the method. `fitted_s`: when (seconds since the epoch), to how many
    `observations`.
    """

    buckets: tuple[dict[str, int], ...]
    fitted_s: float
    observations: float


class Target(Record, frozen=True, kw_only=True):
    """What one kind of machine has for a version.

    `references` are keys of executables that serve nothing: new weights of the same programs are proved with them.
    `plans`: by method, where they differ from the manifest's; where none does, nothing is written of it, so that older
    releases read it.
    """

    format: int = FORMAT
    fingerprint: dict[str, str]
    executables: tuple[ExecutableSpec, ...]
    proofs: tuple[ProofSpec, ...]
    references: tuple[str, ...] = ()
    plans: dict[str, PlanSpec] | msgspec.UnsetType = msgspec.UNSET

    @property
    def plans_by_method(self) -> dict[str, PlanSpec]:
        return self.plans or {}

    @property
    def has_primary(self) -> bool:
        """Whether there is anything for the primary lane."""
        return any(spec.is_for(ladder_only=False) for spec in self.executables)


TIME_S_MAX = 253_402_300_800.0  # the year 10000


class RolloutSpec(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a canary is judged.

    `started_s`: seconds since the epoch, which name the rollout. It is promoted by itself (unless `by_hand`) once it
    was watched for `bake_s` seconds and answered `requests_min` requests of one instance. `numerics`: whether mirrored
    answers have to be the same as stable's within the tolerance, or merely finite where those are; "auto": the same
    where the weights are.
    """

    started_s: Annotated[float, msgspec.Meta(ge=0.0, lt=TIME_S_MAX)]
    bake_s: Annotated[float, msgspec.Meta(ge=0.0, le=30 * 24 * 3600.0)] = 600.0
    requests_min: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 200
    numerics: Literal["auto", "same", "finite"] = "auto"
    by_hand: bool = False


class Serving(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Which versions of a model instances serve, "" for none. They keep those that it names warm, and no others.

    `stable`: gets every request that nothing else is said of. `canary`: gets the `share` of them (0 to 1), and is shown
    the share `mirror` of what stable answered. `previous`: stays warm, so that going back takes no load. `sticky`: who
    sends a key is kept to one version by it. `changed_s`: when (seconds since the epoch), `reason`: and why, which no
    instance looks at. `rollout`: how the canary is judged. What is as usual is not written, so that older releases read
    it.
    """

    format: int = msgspec.field(default_factory=lambda: FORMAT)  # no mere default: it is written as it always was
    stable: str
    canary: str = ""
    share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    mirror: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    previous: str = ""
    sticky: bool = False
    changed_s: float = 0.0
    reason: str = ""
    rollout: RolloutSpec | None = None

    @property
    def versions(self) -> tuple[str, ...]:
        """All that it names, each once, the one that matters most first."""
        return tuple(dict.fromkeys(name for name in (self.stable, self.canary, self.previous) if name))


ALIGN_BYTES = 64  # XLA's CPU client aliases host memory that is aligned so, and copies what is not


def program_path(digest: str) -> str:
    """Where a program's serialised bytes lie."""
    return f"programs/{digest}"


def answers_path(key: str) -> str:
    """Where answers of plain JAX lie that a proof compares with."""
    return f"answers/{key}"


def executable_path(key: str) -> str:
    """Where the artifact with this key lies."""
    return f"executables/{key}"


def weights_path(digest: str) -> str:
    """Where a weights blob lies."""
    return f"weights/{digest}"


def manifest_path(model: str, version: str) -> str:
    """Where a version's manifest lies; the version exists once it does."""
    return f"models/{model}/{version}/manifest.json"


def target_path(model: str, version: str, fingerprint_digest: str) -> str:
    """Where it is said what one kind of machine has for a version."""
    return f"models/{model}/{version}/targets/{fingerprint_digest}.json"


def serving_path(model: str) -> str:
    """Where it is said which version of a model is served."""
    return f"models/{model}/serving.json"


def bucket_name(bucket: dict[str, int]) -> str:
    """'batch=8,seq=128', in the order of the model's dimensions; '*' for a method without dimensions."""
    return ",".join(f"{name}={size}" for name, size in bucket.items()) or "*"


def encode(record: Record) -> bytes:
    """Indented JSON in the order of declaration, so that buckets keep the order of their dimensions."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
