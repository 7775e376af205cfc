"""Run times of all executables of a method on this machine, in a new order each time, so that all see the same noise.

`python -m benchmarks.measured_costs embed FILE` writes what the simulator computes with: medians, and how much single
runs differ. It publishes a dense plan first, which compiles for some minutes the first time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.__main__ import ROOT, machine
from benchmarks.bare import BareCall
from benchmarks.questions import Question, padded_sentence, picture
from benchmarks.simulator.cost_table import CostTable, Measured, noise_of
from benchmarks.stores import Folders, buckets_of, model_in
from cache.executable import Runtime
from warmpool.manifest import bucket_name
from warmpool.process_memory import use_one_heap

MODELS = {"embed": "benchmarks/dense.py", "digits": ""}
PASSES = 15


def measure(folders: Folders, model: str, passes: int, say: Callable[[str], None]) -> CostTable:
    """Run every bucket once a pass.

    Raises:
        WrongAnswer: An executable answered with something else than the reference.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    store = folders.store(model, MODELS[model])
    served = model_in(store, model)
    method = served.method(None)
    assert method is not None
    assert method.batch is not None
    runtime = Runtime.open("jaxlib")
    calls: dict[str, Callable[[], NDArray[np.float32]]] = {}
    buckets: dict[str, dict[str, int]] = {}
    for sizes in buckets_of(served):
        bucket = dict(zip(method.dims, sizes, strict=True))
        question = filled(model, **bucket)
        name = bucket_name(bucket)
        buckets[name] = bucket
        calls[name] = BareCall(runtime, store, question, bucket)
        check(question, calls[name](), name)
    runs_us: dict[str, list[float]] = {name: [] for name in calls}
    generator = random.Random(0)
    for number in range(1, passes + 1):
        for name in generator.sample(list(calls), len(calls)):
            begin_ns = time.perf_counter_ns()
            calls[name]()
            runs_us[name].append((time.perf_counter_ns() - begin_ns) / 1e3)
        say(f"costs of {model}: pass {number}/{passes}")
    measured = [Measured(buckets[name], round(statistics.median(runs), 1)) for name, runs in runs_us.items()]
    where = {**machine(), "runs": passes, "taken": "the bare compiled call, in seeded orders", "version": served.key}
    for server in ("fastapi", "uvicorn"):
        del where[server]
    return CostTable(model, method.batch, where, noise_of(runs_us), tuple(measured))


def filled(model: str, batch: int, seq: int = 0) -> Question:
    """A question that fills a bucket: the same row as often as it has rows."""
    one = padded_sentence(seq) if model == "embed" else picture()
    inputs = {name: np.repeat(array, batch, axis=0) for name, array in one.inputs.items()}
    return Question(one.model, inputs, np.repeat(one.expected, batch, axis=0))


def check(question: Question, found: NDArray[np.float32], who: str) -> None:
    """Raises WrongAnswer. Of digits it is which probability is the largest that is known."""
    if question.model == "digits":
        found = np.eye(10, dtype=np.float32)[found.argmax(axis=1)]
    question.check(found, who)


def main() -> None:
    """Write a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured_costs", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("file", type=Path, help="where to write it, as JSON")
    parser.add_argument("--passes", type=int, default=PASSES, help="how often each is run (%(default)s)")
    parser.add_argument("--note", default="", help="what else is to be known of how they were taken")
    parser.add_argument("--work", type=Path, default=ROOT / ".store-bench", help="stores, used again")
    options = parser.parse_args()
    use_one_heap()  # as lanes do
    os.chdir(ROOT)
    table = measure(
        Folders(options.work.absolute()), options.model, options.passes, lambda line: print(line, file=sys.stderr)
    )
    if options.note:
        table.where["note"] = options.note
    options.file.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")


if __name__ == "__main__":
    main()
