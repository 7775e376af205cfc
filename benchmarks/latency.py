"""What the service adds to a compiled call: one client, a keep-alive connection, binary tensors both ways.

Bare calls, requests and health checks alternate in short slices, so that all three see the same noise. Every answer is
compared, outside the clock, with the bits that the bare call gave first, and those with the reference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.bare import BareCall
from benchmarks.connection import Connection, Response, http_request, poll
from benchmarks.figures import Figure, Report, Target, differences, percentile
from benchmarks.questions import Question, WrongAnswer, contract, padded_sentence, v2_output
from benchmarks.server import Server, warmpool
from benchmarks.spans import request_parts
from benchmarks.status import LIVE, STATUS, settled
from benchmarks.stores import Folders
from cache.executable import Runtime

START_S_MAX = 180.0
CALLS_MIN = 2000
CALLS_A_BLOCK_MIN = 100
SLICE_CALLS = 50
WARM_UP_CALLS = 50
TRACES = http_request("GET", "/v1/traces?count=1000")


@dataclass(slots=True)
class Block:
    """Times of one round's calls, in milliseconds."""

    bare_ms: list[float] = field(default_factory=list)
    http_ms: list[float] = field(default_factory=list)
    live_ms: list[float] = field(default_factory=list)
    lanes: dict[str, int] = field(default_factory=dict)
    parts_ms: dict[str, float] = field(default_factory=dict)  # medians of the requests' spans


@dataclass(frozen=True, slots=True)
class Subject:
    """A question at exactly a bucket's shape, so that nothing is padded."""

    title: str
    question: Question
    bucket: dict[str, int]


def subjects() -> list[Subject]:
    """A call that takes next to nothing, and one of a real network."""
    return [
        Subject("options:price, batch 1", contract(), {"batch": 1}),
        Subject("embed, batch 1, seq 16", padded_sentence(16), {"batch": 1, "seq": 16}),
    ]


def timed[R](call: Callable[[], R]) -> tuple[R, float]:
    """A call's result and its time in milliseconds."""
    start_ns = time.perf_counter_ns()
    result = call()
    return result, (time.perf_counter_ns() - start_ns) / 1e6


class Comparison:
    """One subject, in this process and through a server."""

    def __init__(self, runtime: Runtime, store: Path, server: Server, subject: Subject) -> None:
        self.subject = subject
        self.bare = BareCall(runtime, store, subject.question, subject.bucket)
        self.request = subject.question.v2_request()
        self.server = server
        self.expected = self.bare()
        subject.question.check(self.expected, "the bare call")

    def block(self, calls: int) -> Block:
        """`calls` bare calls, requests and health checks, in slices that alternate."""
        block = Block()
        since_ns = time.time_ns()
        with Connection(self.server.port) as connection:
            for start in range(0, calls, SLICE_CALLS):
                self._slice(block, connection, min(SLICE_CALLS, calls - start))
            traces = msgspec.json.decode(connection.exchange(TRACES).body)
        block.parts_ms = request_parts(traces, since_ns)
        return block

    def _slice(self, block: Block, connection: Connection, calls: int) -> None:
        for _ in range(calls):
            result, bare_ms = timed(self.bare)
            block.bare_ms.append(bare_ms)
            self._check(result, "the bare call")
        for _ in range(calls):
            response, http_ms = timed(lambda: connection.exchange(self.request))
            block.http_ms.append(http_ms)
            self._note(block, response)
        for _ in range(calls):
            block.live_ms.append(timed(lambda: connection.exchange(LIVE))[1])

    def _note(self, block: Block, response: Response) -> None:
        output, served = v2_output(response)
        self._check(output, self.server.name)
        block.lanes[served["lane"]] = block.lanes.get(served["lane"], 0) + 1

    def _check(self, found: np.ndarray, who: str) -> None:
        if not np.array_equal(found, self.expected):
            raise WrongAnswer(f"{who}: {self.subject.title} is not bit for bit what the bare call gave first")


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure at least `CALLS_MIN` calls of each kind, spread over the rounds."""
    calls = max(CALLS_A_BLOCK_MIN, -(-CALLS_MIN // rounds))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # XLA's informational lines
    runtime = Runtime.open("jaxlib")
    figures: list[Figure] = []
    raw: dict[str, Any] = {"calls_a_round": calls}
    for subject in subjects():
        store = folders.store(subject.question.model.partition(":")[0])
        with warmpool(store, folders.log("warmpool-latency")) as server:
            poll(server.port, STATUS, START_S_MAX, settled)
            comparison = Comparison(runtime, store, server, subject)
            comparison.block(WARM_UP_CALLS)
            blocks: list[Block] = []
            for number in range(1, rounds + 1):
                blocks.append(comparison.block(calls))
                bare, http = (percentile(values, 0.5) for values in (blocks[-1].bare_ms, blocks[-1].http_ms))
                say(f"latency {number}/{rounds}: {subject.title}: bare {bare:.3f} ms, HTTP {http:.3f} ms")
        figures += figures_of(subject.title, blocks)
        raw[subject.title] = [asdict(block) for block in blocks]
    return Report("latency over HTTP, binary tensors, one client", figures, raw)


def figures_of(title: str, blocks: list[Block]) -> list[Figure]:
    """Percentiles of each round, and what HTTP adds, round by round."""

    def column(name: str, share: float) -> tuple[float, ...]:
        return tuple(percentile(getattr(block, name), share) for block in blocks)

    bare, http = column("bare_ms", 0.5), column("http_ms", 0.5)
    return [
        Figure(f"{title}: bare call p50", "ms", bare),
        Figure(f"{title}: HTTP p50", "ms", http),
        differences(f"{title}: added p50", "ms", http, bare, Target("at most", 1.0)),
        differences(f"{title}: added p99", "ms", column("http_ms", 0.99), column("bare_ms", 0.99)),
        Figure(f"{title}: GET /v2/health/live p50", "ms", column("live_ms", 0.5)),
        *(
            Figure(f"  of the HTTP p50: {name}", "ms", tuple(block.parts_ms[name] for block in blocks))
            for name in blocks[0].parts_ms
        ),
    ]
