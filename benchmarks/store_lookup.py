"""Looking up an executable by its key in a folder of ten thousand: from the key to an open file."""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure, Report, Target, percentile
from benchmarks.stores import Folders
from cache.local_store import LocalStore
from warmpool.manifest import executable_path

ARTIFACTS = 10_000
LOOKUPS_A_ROUND = 1_000
SIZE_BYTES = 1_000


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:  # noqa: ARG001  # nothing is kept
    """Measure, on artifacts whose content does not matter; keys are drawn anew in every round."""
    keys = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(ARTIFACTS)]
    medians: list[float] = []
    slowest: list[float] = []
    with tempfile.TemporaryDirectory(prefix="warmpool-lookup-") as folder:
        store = LocalStore(Path(folder))
        (store.root / "executables").mkdir()
        for key in keys:  # not by `put`, which syncs each: what is measured is reading
            (store.root / executable_path(key)).write_bytes(key.encode() * (SIZE_BYTES // len(key)))
        draw = random.Random(0)
        for number in range(1, rounds + 1):
            took_ms = [_lookup_ms(store, key) for key in draw.choices(keys, k=LOOKUPS_A_ROUND)]
            medians.append(percentile(took_ms, 0.5))
            slowest.append(percentile(took_ms, 0.99))
            say(f"store lookup {number}/{rounds}: p50 {medians[-1]:.4f} ms, p99 {slowest[-1]:.4f} ms")
    figures = [
        Figure(f"key to open file among {ARTIFACTS:,}, p50", "ms", tuple(medians), Target("at most", 1.0)),
        Figure("the same, p99", "ms", tuple(slowest), Target("at most", 1.0)),
    ]
    return Report("store lookup, a folder", figures, {"p50_ms": medians, "p99_ms": slowest})


def _lookup_ms(store: LocalStore, key: str) -> float:
    start_ns = time.perf_counter_ns()
    with store.local_path(executable_path(key)).open("rb") as stream:
        stream.read(1)
    return (time.perf_counter_ns() - start_ns) / 1e6
