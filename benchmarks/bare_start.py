"""A start of the bare process: what it is given beforehand, how long it took, and whether it computed the right thing.

The inputs of its one run of each executable are the question, padded into the bucket: what is timed is what is checked.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import Question
from benchmarks.stores import executable_of, model_in
from cache.artifact import unpack
from cache.fingerprint import Fingerprint
from cache.signing import ANYONE
from warmpool.catalog import ServedMethod
from warmpool.manifest import bucket_name

_ROOT = Path(__file__).resolve().parents[1]
START_S_MAX = 180.0
# Without site the interpreter knows no packages, so it is told where they are.
CODE = "import sys; sys.path.append(sys.argv[1]); from benchmarks.bare_process import main; main(sys.argv[2:])"
_ENVIRONMENT = {  # as a lane's, and its heap; the caller's does not matter
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


@dataclass(frozen=True, slots=True)
class BareTimes:
    """Seconds since exec until each stage was done, and seconds that each executable took."""

    imported_s: float
    client_s: float
    mapped_s: float
    warm_s: float
    load_s: list[float]
    run_s: list[float]


@dataclass(frozen=True, slots=True)
class BareStart:
    """Everything that the bare process needs, on disk."""

    plan_file: Path
    question: Question
    buckets: list[str]

    @classmethod
    def prepare(cls, folder: Path, store: Path, question: Question, fingerprint: Fingerprint) -> BareStart:
        """Write the plan, and the executables of the question's method as the bytes that XLA takes, into a folder.

        Raises:
            LookupError: A bucket has no executable for this fingerprint.
        """
        name, _, method = question.model.partition(":")
        model = model_in(store, name)
        served = model.method(method or None)
        assert served is not None, question.model
        folder.mkdir(parents=True, exist_ok=True)
        executables: list[dict[str, Any]] = []
        buckets = _buckets(served)
        for number, bucket in enumerate(buckets):
            spec, artifact = executable_of(store, model, fingerprint, served.name, bucket)
            file = folder / str(number)
            file.write_bytes(unpack(artifact, key=spec.key, trust=ANYONE)[1])
            executables.append({"file": str(file), "inputs": _inputs(question, served, bucket)})
        tensors = [(tensor.dtype, tensor.shape, tensor.offset) for tensor in model.manifest.weights.tensors]
        plan_file = folder / "plan.json"
        plan = {"weights": (str(model.weights_file), tensors), "executables": executables}
        plan_file.write_text(json.dumps(plan), encoding="utf-8")
        return cls(plan_file, question, [bucket_name(bucket) for bucket in buckets])

    def run(self) -> BareTimes:
        """Start it once.

        Raises:
            RuntimeError: It failed; the message has the end of what it said.
            WrongAnswer: An executable answered with something else than the reference.
        """
        command = [sys.executable, "-S", "-c", CODE, sysconfig.get_path("platlib"), str(self.plan_file)]
        ended = subprocess.run(
            [*command, str(time.monotonic_ns())],
            cwd=_ROOT,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=START_S_MAX,
        )
        if ended.returncode != 0:
            said = ended.stderr.decode(errors="replace")[-2000:]
            raise RuntimeError(f"the bare process ended with status {ended.returncode}; it said: {said}")
        found = json.loads(ended.stdout)
        for bucket, answer in zip(self.buckets, found["answers"], strict=True):
            self._check(bucket, np.array(answer, self.question.expected.dtype))
        return BareTimes(**found["times"])

    def _check(self, bucket: str, answer: NDArray[Any]) -> None:
        cut = answer[tuple(slice(size) for size in self.question.expected.shape)]
        self.question.check(cut, f"the bare process, {bucket}")


def _buckets(served: ServedMethod) -> list[dict[str, int]]:
    """Every bucket of a method; in which order they are loaded makes no difference."""
    sizes = itertools.product(*(dim.sizes for dim in served.dims.values()))
    return [dict(zip(served.dims, one, strict=True)) for one in sizes]


def _inputs(question: Question, served: ServedMethod, bucket: dict[str, int]) -> list[tuple[str, Any]]:
    """Dtype and values of each input in the program's order, padded into the bucket."""
    padded: list[tuple[str, Any]] = []
    for tensor, (dtype, shape) in zip(served.spec.inputs, served.inputs_of(bucket), strict=True):
        values = question.inputs[tensor.name]
        full = np.full(shape, tensor.pad or 0, dtype)
        full[tuple(slice(size) for size in values.shape)] = values
        padded.append((dtype, full.tolist()))
    return padded
