"""The best offline batches of requests, padded into a file, and the bare process that runs them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.bare_start import BareStart
from benchmarks.simulator.offline import Offline, best_offline
from warmpool.catalog import ServedMethod
from warmpool.manifest import ALIGN_BYTES
from warmpool.selection import Candidate

PASSES = 9  # of every executable, before batches are chosen by what they took
_ROOT = Path(__file__).resolve().parents[1]

Inputs = dict[str, NDArray[Any]]


class OfflineBatches:
    """A bare process, and what it runs.

    Args:
        folder: Where files go.
        start: The executables.
        method: Theirs; its first output is float32 of shape [rows, width].
        requests: Inputs by name, each with its rows first. Its length is the first input's second axis, where the
            method has a dimension besides the rows.
    """

    def __init__(self, folder: Path, start: BareStart, method: ServedMethod, requests: Sequence[Inputs]) -> None:
        assert method.batch is not None
        self._folder = folder
        self._method = method
        self._requests = requests
        self._buckets = [dict(part.split("=") for part in name.split(",")) for name in start.buckets]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_batches", str(start.plan_file)],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._plan()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        """Of the bare process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self) -> tuple[float, float, list[NDArray[Any]]]:
        """Run all batches once: seconds, seconds of CPU time, and the first output of each request."""
        took_s, cpu_s = self._asked(str(self._batches_file))
        data = np.fromfile(self._out, np.float32)
        rows: list[Any] = [None] * len(self._owners)
        at = 0
        for batch in self._offline.batches:
            size = batch.candidate.bucket[self._batch]
            output = data[at : at + size * self._width].reshape(size, self._width)
            at += size * self._width
            for row, place in enumerate(batch.places):
                rows[place] = output[row]
        assert at == data.size, (at, data.size)
        answers: list[list[Any]] = [[] for _ in self._requests]
        for owner, row in zip(self._owners, rows, strict=True):
            answers[owner].append(row)
        return took_s, cpu_s, [np.stack(one) for one in answers]

    def describe(self) -> dict[str, Any]:
        """The batches, and what they were predicted to take."""
        buckets = [batch.candidate.bucket for batch in self._offline.batches]
        return {"batches": len(buckets), "predicted_s": self._offline.total_us / 1e6, "costs_us": self._costs_us}

    @property
    def _batch(self) -> str:
        assert self._method.batch is not None
        return self._method.batch

    def _asked(self, what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the bare process ended with status {self._process.wait()}; it said why above")
        return json.loads(line)

    def _plan(self) -> None:
        costs_us = [statistics.median(runs) for runs in self._asked(PASSES)]
        buckets = [{name: int(size) for name, size in bucket.items()} for bucket in self._buckets]
        candidates = [
            Candidate(number, bucket, cost) for number, (bucket, cost) in enumerate(zip(buckets, costs_us, strict=True))
        ]
        self._costs_us = costs_us
        first = self._method.spec.inputs[0].name
        length = next((name for name in self._method.dims if name != self._batch), "")
        self._owners = [number for number, one in enumerate(self._requests) for _ in range(len(one[first]))]
        starts = {number: place for place, number in reversed(list(enumerate(self._owners)))}
        lengths = [self._requests[owner][first].shape[1] if length else 1 for owner in self._owners]
        self._offline = best_offline(lengths, candidates, self._batch, length)
        self._out = self._folder / "answers"
        self._batches_file = self._folder / "batches.json"
        planned = self._padded(self._offline, starts)
        self._batches_file.write_text(json.dumps(planned), encoding="utf-8")
        (width,) = self._method.spec.outputs[0].shape[1:]
        self._width = int(width)

    def _padded(self, offline: Offline, starts: dict[int, int]) -> dict[str, Any]:
        """Write the batches' inputs into a file, each tensor where XLA takes it without copying."""
        data = self._folder / "padded"
        batches = []
        with data.open("wb") as stream:
            for batch in offline.batches:
                inputs = []
                for spec, (dtype, shape) in zip(
                    self._method.spec.inputs, self._method.inputs_of(batch.candidate.bucket), strict=True
                ):
                    full = np.full(shape, spec.pad or 0, dtype)
                    for row, place in enumerate(batch.places):
                        owner = self._owners[place]
                        values = self._requests[owner][spec.name][place - starts[owner]]
                        full[row][tuple(slice(size) for size in values.shape)] = values
                    stream.seek(-(-stream.tell() // ALIGN_BYTES) * ALIGN_BYTES)
                    inputs.append((dtype, shape, stream.tell()))
                    stream.write(full.tobytes())
                batches.append({"executable": batch.candidate.id, "inputs": inputs})
        return {"data": str(data), "batches": batches, "out": str(self._out)}
