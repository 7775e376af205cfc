"""A process that compiles every executable of a store, one after the other, as a server does that has none.

It begins with what the store has, programs that are traced already, and proves, runs and stores nothing. XLA uses as
many threads for each as it likes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMPILE_S_MAX = 900.0
CODE = "from benchmarks.compile_all import main; main()"
_ROOT = Path(__file__).resolve().parents[1]


def compile_all_s(store: Path, models: tuple[str, ...], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds from exec until every executable is compiled that these models' targets list, and how many these are.

    Raises:
        RuntimeError: It failed; the message has the end of what it said.
    """
    kept = {"PATH": os.environ.get("PATH", ""), "JAX_PLATFORMS": "cpu", **environment}
    started_s = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=_ROOT,
        env=kept,
        input=json.dumps([str(store), *models]),
        capture_output=True,
        text=True,
        timeout=COMPILE_S_MAX,
        check=False,
    )
    took_s = time.perf_counter() - started_s
    if ended.returncode != 0:
        raise RuntimeError(f"compiling everything ended with status {ended.returncode}: {ended.stderr[-2000:]}")
    return took_s, int(ended.stdout)


def main() -> None:
    """Compile what standard input names."""
    import jax

    from benchmarks.stores import model_in, opened
    from warmpool.manifest import program_path
    from warmpool.publishing.program import read_program
    from warmpool.symbolic import shape_of

    path, *models = json.load(sys.stdin)
    store = opened(Path(path))
    compiled = 0
    for name in models:
        model = model_in(Path(path), name)
        weights = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in model.manifest.weights.tensors]
        for method, bucket in planned(store, model):
            digest = method.spec.program(bucket)
            program = read_program(store.get(program_path(digest)), digest)
            inputs = [jax.ShapeDtypeStruct(shape_of(one.shape, bucket), one.dtype) for one in method.spec.inputs]
            jax.jit(program.call, keep_unused=True).lower(*weights, *inputs).compile()
            compiled += 1
    print(compiled)


def planned(store: Any, model: Any) -> list[tuple[Any, dict[str, int]]]:
    """The methods and buckets that a version has on the machine that published it, without the CPU lane's own."""
    import msgspec

    from warmpool.manifest import Target

    folder = f"models/{model.manifest.model}/{model.manifest.version}/targets"
    (entry,) = store.entries(folder)
    target = msgspec.json.decode(store.get(entry.path), type=Target)
    return [(model.methods[spec.method], spec.bucket) for spec in target.executables if not spec.cpu_lane_only]


if __name__ == "__main__":
    main()
