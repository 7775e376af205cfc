"""What a lane is to load, and in which order: made from the catalog and the target of the lane's fingerprint."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cache.audit import Fields
from cache.errors import CacheError, told
from cache.fetching import fetch, fetch_all
from cache.fingerprint import Fingerprint
from cache.key import program_and_bucket
from cache.store import Store
from warmpool import messages
from warmpool.arena import Region, regions
from warmpool.catalog import ServedMethod, ServedModel, load_order, read_target
from warmpool.manifest import ExecutableSpec, Target, bucket_name, executable_path
from warmpool.residency import Footprint
from warmpool.selection import Candidate

log = logging.getLogger(__name__)

SPARE_BYTES = 8 << 20
CODE_BYTES_A_STORED_BYTE = 25  # where nobody measured: on a CPU it was 17 to 30
NOT_PUBLISHED = "it was not published for this kind of machine; publish it on one"


@dataclass(frozen=True, slots=True)
class Loadable:
    """An executable that a lane is to hold, with everything the lane and the front need to know of it."""

    candidate: Candidate
    method: ServedMethod
    message: messages.Load
    minimum: bool
    inputs: list[Region]
    outputs: list[Region]
    footprint: Footprint

    @property
    def title(self) -> str:
        return f"{self.method.model}:{self.method.name} {bucket_name(self.candidate.bucket)}"

    @property
    def audited(self) -> Fields:
        """What an audit log says of it."""
        return {
            "model": self.method.model,
            "version": self.method.version,
            "method": self.method.name,
            "bucket": bucket_name(self.candidate.bucket),
            "key": self.message.key,
        }


@dataclass(slots=True)
class LoadPlan:
    """What a lane of one fingerprint is to hold.

    `work` is in load order; `missing` says why a version (by key) is not part of it, `absent` why an executable cannot
    be loaded. Executables are numbered; the next one would get the number `end`, and none is ever given twice.
    `quietly`: what is no minimum set is loaded last, and one by one.
    """

    end: int = 0
    work: list[messages.Weights | messages.Load] = field(default_factory=list)
    weights: dict[str, messages.Weights] = field(default_factory=dict)
    weights_bytes: dict[str, int] = field(default_factory=dict)
    loadables: dict[int, Loadable] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    quietly: bool = False

    @property
    def arena_bytes(self) -> int:
        """Shared memory that the inputs and outputs of any executable take."""
        regions = (region for one in self.loadables.values() for region in (*one.inputs, *one.outputs))
        return max((region.end for region in regions), default=0)

    def add_weights(self, model: ServedModel, verified: str) -> None:
        """Plan a version's weights; `verified` names the file that was verified, if it was."""
        message = messages.Weights(
            version=model.key,
            manifest_path=str(model.manifest_file),
            weights_path=str(model.weights_file),
            verified=verified,
        )
        self.work.append(message)
        self.weights[model.key] = message
        self.weights_bytes[model.key] = model.manifest.weights.size_bytes

    def add(self, model: ServedModel, spec: ExecutableSpec, artifact_file: str, absent: str = "") -> None:
        """Plan an executable; `absent` says why there is nothing to load."""
        method = model.methods[spec.method]
        number, self.end = self.end, self.end + 1
        inputs, outputs = method.inputs_of(spec.bucket), method.outputs_of(spec.bucket)
        message = messages.Load(
            executable=number,
            version=model.key,
            artifact_path=artifact_file,
            key=spec.key,
            inputs=inputs,
            outputs=outputs,
            made_of=program_and_bucket(method.spec.program(spec.bucket), spec.bucket),
            bytes_max=2 * spec.size_bytes + SPARE_BYTES,  # made anew since, it may have another size, but not any
        )
        placed = regions(inputs)
        results = regions(outputs, placed[-1].end if placed else 0)
        if absent:
            self.absent[number] = absent
        else:
            self.work.append(message)
        self.loadables[number] = Loadable(
            candidate=Candidate(number, spec.bucket, spec.cost_us),
            method=method,
            message=message,
            minimum=spec.minimum,
            inputs=placed,
            outputs=results,
            footprint=_footprint(model.key, spec, max((region.end for region in (*placed, *results)), default=0)),
        )


def plan_loads(
    store: Store,
    models: Iterable[ServedModel],
    fingerprint: Fingerprint,
    *,
    verified: Mapping[str, str],
    ladder_only: bool,
    first: int = 0,
    far: bool = False,
    quietly: bool = False,
) -> LoadPlan:
    """The plan of a lane.

    Args:
        store: where targets and artifacts are.
        models: what the instance serves.
        fingerprint: of the lane.
        verified: by model key, which weights file was verified.
        ladder_only: whether the lane holds the ladder alone, as the CPU lane does.
        first: number of the first executable.
        far: whether a file may have to be downloaded first: many are then asked for at a time, the minimum sets first.
        quietly: as in `LoadPlan`.
    """
    plan = LoadPlan(end=first, quietly=quietly)
    targets: dict[str, Target] = {}
    by_key = {model.key: model for model in models}
    for key, model in by_key.items():
        try:
            target = read_target(store, model, fingerprint.digest)
        except CacheError as error:
            log.warning("target cannot be read", extra={"model": key, "reason": str(error)})
            plan.missing[key] = told(error)
            continue
        if target is None or not (ladder_only or target.has_primary):
            plan.missing[key] = NOT_PUBLISHED
            continue
        targets[key] = target
        plan.add_weights(model, verified.get(key, ""))
    wanted = [(by_key[key], spec) for key, spec in load_order(targets) if spec.is_for(ladder_only=ladder_only)]
    add_executables(plan, store, wanted, far=far)
    return plan


def add_executables(
    plan: LoadPlan, store: Store, wanted: Sequence[tuple[ServedModel, ExecutableSpec]], *, far: bool
) -> None:
    """Plan executables of models whose weights are planned, in this order; `far` as in `plan_loads`."""
    files = fetch_all(store, (executable_path(spec.key) for _, spec in wanted)) if far else {}
    for model, spec in wanted:
        path = executable_path(spec.key)
        file = files[path] if far else fetch(store, path)
        if isinstance(file, Path):
            plan.add(model, spec, os.fspath(file))
        else:
            plan.add(model, spec, "", absent=told(file))
            log.error("executable is missing", extra={"model": model.key, "reason": str(file)})


def _footprint(version: str, spec: ExecutableSpec, tensor_bytes: int) -> Footprint:
    """As it was measured; what was not is taken to be as large as its tensors, or in proportion to what is stored."""
    code, temp = (spec.memory.code, spec.memory.temp) if spec.memory else (0, tensor_bytes)
    return Footprint(
        version=version,
        held_bytes=code or spec.size_bytes * CODE_BYTES_A_STORED_BYTE,
        run_bytes=temp + tensor_bytes,
        minimum=spec.minimum,
    )
