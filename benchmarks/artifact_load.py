"""`python -m benchmarks.artifact_load`: what it costs to load an artifact rather than what JAX itself serialises.

Both are the same compile, made in another process and serialised before it ran. Ours opens the file, reads it, compares
digest and Ed25519 signature, the fingerprint with this machine's, and has XLA load the rest. The other way is the one
that JAX documents: unpickle a file of what `jax.experimental.serialize_executable.serialize` gave, and call
`deserialize_and_load`; nothing is checked. They take turns in one process, in changing order, each file in the page
cache; every loaded executable runs, and both have to answer the same to the bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle  # noqa: TID251  # the other way unpickles
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from rich.console import Console

from benchmarks.figures import Figure, Report, Target, ratios, show
from benchmarks.stores import Folders
from cache.artifact import Header, pack, unpack
from cache.errors import Foreign
from cache.executable import Executable, Runtime, calling_of, serialize, without_locations
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients, made_for
from cache.signing import Signer, Trust

LAYERS = {"small": 1, "large": 24}  # unrolled: every layer is code of its own
WIDTH = 128
ROUNDS = 41
COLUMNS = 140  # of a table that goes to a file
_COMPILE_S_MAX = 600.0

Arrays = list[Any]


def stack(weights: list[Any], x: Any) -> tuple[Any, Any]:
    """Layers of attention and a gated network."""
    for queries, keys, values, wide, narrow in weights:
        scores = jax.nn.softmax((x @ queries) @ (x @ keys).T / WIDTH**0.5)
        x = x + scores @ (x @ values)
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(x @ wide) @ narrow
    return x, x.sum(0)


def arguments_of(name: str) -> tuple[list[Arrays], Any]:
    """Its weights and one input."""
    random = np.random.default_rng(LAYERS[name])
    shapes = [(WIDTH, WIDTH)] * 3 + [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    weights = [
        [random.normal(size=shape, scale=0.05).astype(np.float32) for shape in shapes] for _ in range(LAYERS[name])
    ]
    return weights, random.normal(size=(16, WIDTH)).astype(np.float32)


def compile_all(folder: Path) -> None:
    """Compile each, and write what either way loads; for a process of its own."""
    jax.config.update("jax_enable_compilation_cache", False)  # what comes from there serialises to what fails later
    fingerprint = Runtime.open("jax").fingerprint()
    signer = Signer.generate()
    (folder / "key").write_bytes(signer.public)
    for name in LAYERS:
        lowered = without_locations(jax.jit(stack).lower(*arguments_of(name)))
        compiled = lowered.compile()
        ingredients = executable_ingredients(program=name, bucket={}, fingerprint=fingerprint, options={})
        key = digest_ingredients(ingredients)
        header = Header(key=key, ingredients=ingredients, calling=calling_of(lowered, compiled))
        (folder / f"{name}.artifact").write_bytes(pack(header, serialize(compiled), signer))
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))


class Ways:
    """Both ways to load one of them, in this process."""

    def __init__(self, folder: Path, name: str, runtime: Runtime, fingerprint: Fingerprint, trust: Trust) -> None:
        self.name = name
        self.artifact = folder / f"{name}.artifact"
        self.pickled = folder / f"{name}.pickle"
        self.runtime = runtime
        self.fingerprint = fingerprint
        self.trust = trust
        self.key = digest_ingredients(
            executable_ingredients(program=name, bucket={}, fingerprint=fingerprint, options={})
        )
        weights, self.x = arguments_of(name)
        self.weights = weights
        self.flat = [*(array for layer in weights for array in layer), self.x]

    def ours(self) -> Executable:
        """As a lane loads: nothing reaches XLA that is not whole, signed, and of this machine's fingerprint."""
        header, payload = unpack(self.artifact.read_bytes(), key=self.key, trust=self.trust)
        differ = self.fingerprint.differences(made_for(header.ingredients))
        if differ or digest_ingredients(header.ingredients) != self.key:
            raise Foreign(self.name, differ)
        return self.runtime.load(payload, header.calling)

    def plain(self) -> Any:
        """As JAX does it."""
        payload, in_tree, out_tree = pickle.loads(self.pickled.read_bytes())  # noqa: S301  # written above
        return serialize_executable.deserialize_and_load(payload, in_tree, out_tree)

    def check(self, ours: Executable, plain: Any) -> None:
        """Both run, and answer the same."""
        found = ours.run([ours.put(index, array) for index, array in enumerate(self.flat)])
        expected = [np.asarray(one) for one in jax.tree.leaves(plain(self.weights, jnp.asarray(self.x)))]
        assert [one.tobytes() for one in found] == [one.tobytes() for one in expected], self.name


def timed(load: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it loads, and the milliseconds that took: of the clock, and of processors, which others disturb less."""
    gc.collect()
    start_ns, start_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    loaded = load()
    return loaded, (time.perf_counter_ns() - start_ns) / 1e6, (time.process_time_ns() - start_cpu_ns) / 1e6


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:  # noqa: ARG001  # nothing is kept
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="warmpool-artifact-load-") as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "benchmarks.artifact_load", "--compile-into", scratch]
        subprocess.run(command, check=True, timeout=_COMPILE_S_MAX, stdout=sys.stderr)
        runtime = Runtime.open("jax")
        fingerprint = runtime.fingerprint()
        trust = Trust.of([(folder / "key").read_bytes()])
        every = [Ways(folder, name, runtime, fingerprint, trust) for name in LAYERS]
        times: dict[str, list[tuple[float, ...]]] = {name: [] for name in LAYERS}
        for number in range(rounds + 1):
            for ways in every:
                loads = [ways.ours, ways.plain]
                taken = {load: timed(load) for load in (loads if number % 2 else loads[::-1])}
                (ours, *ours_ms), (plain, *plain_ms) = (taken[load] for load in loads)
                ways.check(ours, plain)
                if number:  # the first fills the page cache and imports what is imported lazily
                    times[ways.name].append((*ours_ms, *plain_ms))
            if number:
                say(f"artifact load {number}/{rounds}")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.suffix}
    figures = []
    for name, rows in times.items():
        ours_all, ours_cpu, plain_all, plain_cpu = zip(*rows, strict=True)
        size = f"{sizes[f'{name}.artifact'] / 1000:.0f} kB"
        figures += [
            Figure(f"{name}, {size}: artifact, verified", "ms", ours_all),
            Figure(f"{name}: deserialize_and_load, pickled", "ms", plain_all),
            ratios(f"{name}: artifact over deserialize_and_load", ours_all, plain_all, Target("at most", 1.15)),
            ratios(f"{name}: the same in time of processors", ours_cpu, plain_cpu),
        ]
    return Report("load of an executable, in a process with jax", figures, {"bytes": sizes})


def main() -> int:
    """Print a table; 0 if the targets are met, 3 if one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.artifact_load", description="Loads in turns.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is loaded (%(default)s)")
    parser.add_argument("--compile-into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile_into:
        compile_all(options.compile_into)
        return 0
    report = run(Folders(Path()), options.rounds, lambda _: None)
    show(Console(highlight=False, width=None if sys.stdout.isatty() else COLUMNS), report)
    print(json.dumps(report.raw))
    return 3 if any(figure.verdict == "missed" for figure in report.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
