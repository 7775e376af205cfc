"""What a publish does in forked children: compile one bucket, run a reference, try an executable in another process.

A compile can abort its process, so each has one of its own. Every function takes and returns a small dict; tensors and
programs go through files in a scratch folder. jax is imported inside of functions, for trials run where only jaxlib is.
"""

from __future__ import annotations

import hashlib
import os
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cache.artifact import Header, pack, unpack
from cache.executable import Executable, Runtime, calling_of, serialize, without_locations
from cache.signing import Trust
from warmpool.arena import aligned
from warmpool.manifest import Manifest, MemorySpec, bucket_name
from warmpool.process_memory import private_bytes
from warmpool.publishing.compare import nowhere_a_number
from warmpool.publishing.points import Sizes
from warmpool.publishing.prove import alike, prove
from warmpool.publishing.references import References, write_references
from warmpool.publishing.subject import VARIANTS, Case, Row, Subject, Tensors
from warmpool.symbolic import shape_of
from warmpool.weights import map_weights

Argument = dict[str, Any]

TIMED_RUNS_MAX = 15
TIMED_S_MAX = 0.5
_WAITING_FACTOR = 2
_LOADS = 3  # odd, so that one of them is in the middle


def describe(argument: Argument) -> Argument:
    """The fingerprint of the runtime that a lane of this mode has."""
    _before_a_backend(None)
    runtime = Runtime.open(argument["mode"])
    return {"platform": runtime.platform, "ingredients": dict(runtime.fingerprint().ingredients)}


def compile_bucket(argument: Argument) -> Argument:
    """Compile a program for one bucket and write the artifact; it is serialised before it ever ran.

    With "outputs" it is run then, as a reference at "point", which it pads and merges nothing for. An error of that run
    is none of the compile's: it is what comes back as "failure".
    """
    _before_a_backend(argument["platform"])
    subject, manifest = _subject(argument)
    bucket = argument["bucket"]
    start_s = time.monotonic()
    lowered = _lowered(argument, manifest, subject, bucket)
    compiled = lowered.compile(tuning(argument["platform"], _scratch(argument)) | argument["options"])
    compile_s = time.monotonic() - start_s
    _write_artifact(argument, lowered, compiled)
    if argument["outputs"] is None:
        return {"compile_s": compile_s}
    try:
        return {"compile_s": compile_s, **_run_exact(argument, manifest, subject, compiled)}
    except Exception as error:  # noqa: BLE001  XLA raises what it likes
        return {"compile_s": compile_s, "failure": f"{type(error).__name__}: {error}"}


def reference(argument: Argument) -> Argument:
    """Run plain JAX at an exact shape, batch size 1, on every value set of a point; writes the outputs.

    With "artifact" it writes the executable too, for `reference_stored` to run with other weights.
    """
    _before_a_backend(argument["platform"])
    subject, manifest = _subject(argument)
    lowered = _lowered(argument, manifest, subject, subject.exact_sizes(argument["point"]))
    compiled = lowered.compile(tuning(argument["platform"], _scratch(argument)))
    if argument["artifact"]:
        _write_artifact(argument, lowered, compiled)
    return _run_exact(argument, manifest, subject, compiled)


def reference_stored(argument: Argument) -> Argument:
    """Run a stored executable where it pads nothing; writes the outputs like `reference`."""
    _before_a_backend(None)
    subject, manifest = _subject(argument)
    bucket, point = argument["bucket"], argument["point"]
    loaded = _Loaded(argument, manifest)
    results = []
    for variant in range(VARIANTS):
        row = Row(point, variant)
        count = bucket[subject.batch] if subject.batch else 1
        outputs = loaded.run(subject.padded(bucket, Case((row,) * count, "written")))
        results.append(subject.cut(outputs, 0, row))
    return _written(argument, subject, results)


def answers(argument: Argument) -> Argument:
    """Run a stored executable on the batches that prove its bucket; writes the outputs, for `lanes` to compare with."""
    _before_a_backend(None)
    subject, manifest = _subject(argument)
    bucket = argument["bucket"]
    loaded = _Loaded(argument, manifest)
    batches = subject.batches(bucket, argument["points"])
    results = [loaded.run(subject.padded(bucket, Case(rows, "written"))) for rows, _ in batches]
    write_references(Path(argument["outputs"]), results)
    return {}


def lanes(argument: Argument) -> Argument:
    """Compare a stored executable with what the one of the same bucket in the other lane answered.

    Returns:
        "failure", None or what is wrong; "proofs".
    """
    _before_a_backend(None)
    subject, manifest = _subject(argument)
    bucket = argument["bucket"]
    loaded = _Loaded(argument, manifest)
    others = References({bucket_name(bucket): argument["outputs"]}, subject.spec)
    tally, failure = alike(
        subject, bucket, argument["points"], loaded.run, lambda number: others.of(Row(bucket, number))
    )
    return {"failure": failure, "proofs": msgspec.to_builtins(tally.proofs(subject.method))}


def trial(argument: Argument) -> Argument:
    """Load an artifact as a lane does, prove its bucket, and, if it is to be "measured", its run time and its memory.

    Returns:
        "failure", None or what is wrong; "digest", SHA-256 of the artifact's bytes; "proofs"; and where it was measured
        "cost_us", what a run takes with host inputs and outputs, and "memory", as a `MemorySpec` has it.
    """
    _before_a_backend(None)
    subject, manifest = _subject(argument)
    bucket = argument["bucket"]
    loaded = _Loaded(argument, manifest)
    references = References(argument["references"], subject.spec)
    points = argument["points"]
    tally, failure = prove(subject, bucket, points, loaded.run, references.of, stored=argument["stored"])
    if failure:
        return {"failure": failure}
    proved = {"failure": None, "digest": loaded.digest, "proofs": msgspec.to_builtins(tally.proofs(subject.method))}
    if not argument["measured"]:
        return proved
    whole = Case(subject.batches(bucket, points)[0][0], "written")
    cost_us = loaded.cost_us(subject.padded(bucket, whole))
    return {**proved, "cost_us": cost_us, "memory": msgspec.to_builtins(loaded.memory())}


class _Loaded:
    """An executable in this process, with its weights on the device."""

    def __init__(self, argument: Argument, manifest: Manifest) -> None:
        self.runtime = Runtime.open(argument["mode"])
        trust = Trust.from_json(argument["trust"])
        data = Path(argument["artifact"]).read_bytes()
        self.digest = hashlib.sha256(data).hexdigest()
        _, self._payload = unpack(data, key=argument["key"], trust=trust)
        self.executable: Executable = self.runtime.load(self._payload)
        self._mapped = map_weights(Path(argument["weights"]), manifest.weights)  # aliased by the buffers on a CPU
        self.weights = [self.runtime.put(array) for array in self._mapped]
        self._taken_ns: list[int] = []
        self._computed_ns: list[int] = []

    def run(self, inputs: Sequence[NDArray[Any]]) -> Tensors:
        """Run on host inputs; the outputs are copies of the caller's own."""
        return [np.array(output) for output in self._timed([aligned(array) for array in inputs])]

    def cost_us(self, inputs: Sequence[NDArray[Any]]) -> float:
        """What a run takes: of all so far but the first, and of as many more as make them enough.

        The machine may be busy, for a running instance has its executables made beside it, by processes that get what
        is left: others only ever add to a time, so the shortest counts. On a CPU where every run was kept waiting, the
        CPU time tells: of one that has the machine for itself, less than half is waiting.
        """
        placed = [aligned(array) for array in inputs]
        while len(self._taken_ns) < 2 or (
            len(self._taken_ns) <= TIMED_RUNS_MAX and sum(self._taken_ns) < TIMED_S_MAX * 1e9
        ):
            self._timed(placed)
        taken_ns = min(self._taken_ns[1:])
        if self.runtime.platform == "cpu":
            taken_ns = min(taken_ns, _WAITING_FACTOR * min(self._computed_ns[1:]))
        return taken_ns / 1000.0

    def _timed(self, placed: Sequence[NDArray[Any]]) -> list[Any]:
        start_ns, computed_ns = time.perf_counter_ns(), _cpu_ns()
        outputs = self.executable.run([*self.weights, *(self.runtime.put(array) for array in placed)])
        self._taken_ns.append(time.perf_counter_ns() - start_ns)
        self._computed_ns.append(_cpu_ns() - computed_ns)
        return outputs

    def memory(self) -> MemorySpec:
        """What the executable takes. Where XLA does not say it of the code, it is loaded again to see.

        The first time a process also pays for what all executables share: it would be charged to the first of them.
        Of several loads the middle one counts, since threads of XLA may give back what a run took meanwhile.
        """
        code, temp, arguments, outputs = self.executable.memory()
        if code == 0 and self.runtime.platform == "cpu":
            again, grown = [], []
            for _ in range(_LOADS):
                before = private_bytes()
                again.append(self.runtime.load(self._payload))
                grown.append(private_bytes() - before)
            code = max(0, statistics.median_low(grown))
        return MemorySpec(code=code, temp=temp, arguments=arguments, outputs=outputs)


def _cpu_ns() -> int:
    """CPU time of all threads so far. With a limit on it, the clock of the process stands still between two ticks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round((used.ru_utime + used.ru_stime) * 1e9)


def _write_artifact(argument: Argument, lowered: Any, compiled: Any) -> None:
    """Unsigned: the key that signs is not for a process that runs what an author wrote."""
    calling = calling_of(lowered, compiled)
    header = Header(key=argument["key"], ingredients=argument["ingredients"], calling=calling)
    Path(argument["artifact"]).write_bytes(pack(header, serialize(compiled)))


def _run_exact(argument: Argument, manifest: Manifest, subject: Subject, compiled: Any) -> Argument:
    """Run what was compiled for an exact shape on every value set of it."""
    weights = map_weights(Path(argument["weights"]), manifest.weights)
    rows = [Row(argument["point"], variant) for variant in range(VARIANTS)]
    results = [[np.asarray(one) for one in compiled(*weights, *subject.exact(row))] for row in rows]
    return _written(argument, subject, results)


def _written(argument: Argument, subject: Subject, results: list[Tensors]) -> Argument:
    write_references(Path(argument["outputs"]), results)
    names = [subject.spec.outputs[index].name for index in nowhere_a_number(results)]
    return {"nowhere_a_number": names}


def _subject(argument: Argument) -> tuple[Subject, Manifest]:
    manifest = msgspec.json.decode(Path(argument["manifest"]).read_bytes(), type=Manifest)
    return Subject(manifest, argument["method"]), manifest


def _lowered(argument: Argument, manifest: Manifest, subject: Subject, sizes: Sizes) -> Any:
    """The program at concrete sizes, as `jax.jit` lowers it."""
    import jax

    from warmpool.publishing.program import read_program

    exported = read_program(Path(argument["program"]).read_bytes(), argument["program_digest"])
    weights = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in manifest.weights.tensors]
    inputs = [jax.ShapeDtypeStruct(shape_of(one.shape, sizes), one.dtype) for one in subject.spec.inputs]
    return without_locations(jax.jit(exported.call, keep_unused=True).lower(*weights, *inputs))


def tuning(platform: str, scratch: Path) -> dict[str, str]:
    """Compile options that let a child use what another found out: which kernels are fastest on a GPU.

    That is all that is shared: XLA remembers the choice for each fusion, not what it compiled, which could not be
    serialised again. It is no part of a key, as little as the measuring itself. Other platforms measure nothing.
    What it saves was not measured: the option is known to XLA everywhere, but does something on a GPU only.
    """
    if platform not in {"cuda", "rocm"}:
        return {}
    folder = scratch / "autotuning"
    folder.mkdir(exist_ok=True)
    return {"xla_gpu_per_fusion_autotune_cache_dir": str(folder)}


def _scratch(argument: Argument) -> Path:
    """The folder that a publish gives all its children."""
    return Path(argument["manifest"]).parent


def _before_a_backend(platform: str | None) -> None:
    """Settings that count only until a backend exists. None: this process has no jax, or uses the one device it has."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two children share an accelerator's memory
    if platform is None:
        return
    import jax

    jax.config.update("jax_platforms", platform)
    jax.config.update("jax_enable_x64", False)
    # An executable out of JAX's own cache would serialise to bytes that load and then fail at their first run.
    jax.config.update("jax_enable_compilation_cache", False)
