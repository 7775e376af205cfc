"""Cold start with warm caches on both sides: exec to the first correct answer, and exec to every bucket ready.

Each round has fresh processes: ours (both times), and of each peer one that is asked for one exact shape and one that
is told to warm the same buckets before it listens. The targets are against the peer that serves the same Flax function;
one that was written again without flax stands beside it. So does a bare process that only loads and runs the same
executables: how near ours is to what XLA and this machine's cores allow. One round before the first fills what a
second start finds (bytecode, page cache, the peer's compilation cache); it is kept in the raw results and counted
nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import spans
from benchmarks.bare_start import BareStart, BareTimes
from benchmarks.connection import STATUS_BACKOFF_S, Response, ask_once, http_request, poll
from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.questions import Question, sentence
from benchmarks.server import Server, peer, warmpool
from benchmarks.status import STATUS, all_warm, primary_lane
from benchmarks.stores import Folders, buckets_of, model_in
from cache.executable import Runtime

START_S_MAX = 180.0
BUCKETS_MIN = 12
STAGE_MS_MIN = 1.0  # shorter ones explain nothing
TRACES = http_request("GET", "/v1/traces?cold=1&count=1000")
COMPILES = http_request("GET", "/compiles")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds since exec, in the order they were measured, and what explains them."""

    load_average: float
    ours_first_s: float
    ours_all_s: float
    bare_all_s: float
    flax_first_s: float
    flax_all_s: float
    plain_first_s: float
    plain_all_s: float
    ours_served: dict[str, Any]
    bare: BareTimes
    peer_compiles: tuple[dict[str, int], ...]
    trace: list[spans.Span] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ColdStart:
    """What every round starts from."""

    folders: Folders
    store: Path
    question: Question
    buckets: list[tuple[int, int]]
    bare: BareStart

    @classmethod
    def prepare(cls, folders: Folders) -> ColdStart:
        store = folders.store("embed", "benchmarks/twelve.py")
        buckets = [(batch, seq) for batch, seq in buckets_of(model_in(store, "embed"))]
        assert len(buckets) >= BUCKETS_MIN, buckets
        question = sentence()
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # XLA's informational lines
        bare = BareStart.prepare(folders.root / "bare", store, question, Runtime.open("jaxlib").fingerprint())
        assert len(bare.buckets) == len(buckets), bare.buckets
        return cls(folders, store, question, buckets, bare)

    def round(self) -> Round:
        load_average = os.getloadavg()[0]
        first_s, all_s, served, trace = self.ours()
        bare = self.bare.run()
        flax_first_s, first = self.peer("flax")
        flax_all_s, second = self.peer("flax", self.buckets)
        plain_first_s, third = self.peer("plain")
        plain_all_s, fourth = self.peer("plain", self.buckets)
        return Round(
            load_average=load_average,
            ours_first_s=first_s,
            ours_all_s=all_s,
            bare_all_s=bare.warm_s,
            flax_first_s=flax_first_s,
            flax_all_s=flax_all_s,
            plain_first_s=plain_first_s,
            plain_all_s=plain_all_s,
            ours_served=served,
            bare=bare,
            peer_compiles=(first, second, third, fourth),
            trace=trace,
        )

    def ours(self) -> tuple[float, float, dict[str, Any], list[spans.Span]]:
        """First answer, all buckets warm (each ran once and its result was read), how it was served, its trace."""
        with warmpool(self.store, self.folders.log("warmpool")) as server:
            response, answered_s = first_answer(server, self.question.v2_request())
            served = self.question.check_v2(response, server.name)
            status, ready_s = poll(server.port, STATUS, START_S_MAX, all_warm, STATUS_BACKOFF_S)
            assert primary_lane(status)["planned"] == len(self.buckets), primary_lane(status)
            traces = msgspec.json.decode(ask_once(server.port, TRACES).body)
        return answered_s - server.exec_s, ready_s - server.exec_s, served, spans.cold_start(traces)

    def peer(self, model: str, buckets: Sequence[tuple[int, int]] = ()) -> tuple[float, dict[str, int]]:
        """First answer of a peer, which with buckets comes after it has run them all, and what it compiled."""
        with peer(model, self.folders.peer_cache, self.folders.log("peer"), buckets) as server:
            response, answered_s = first_answer(server, self.question.peer_request())
            self.question.check_peer(response, server.name)
            compiles: dict[str, int] = msgspec.json.decode(ask_once(server.port, COMPILES).body)
        return answered_s - server.exec_s, compiles


def first_answer(server: Server, request: bytes) -> tuple[Response, float]:
    """The first 200, and when it had come."""
    return poll(server.port, request, START_S_MAX, lambda response: response.status == 200)


def run(folders: Folders, rounds: int, say: Say) -> Report:
    """Measure.

    Raises:
        WrongAnswer: A server answered with something else than the reference.
        ValueError: The peer compiled in a counted round, or an executable could not be warmed.
    """
    cold_start = ColdStart.prepare(folders)
    before = cold_start.round()
    say("cold start: a round before the first, to fill caches")
    measured: list[Round] = []
    for number in range(1, rounds + 1):
        one = cold_start.round()
        if any(compiles["cache_misses"] for compiles in one.peer_compiles):
            raise ValueError(f"the peer's cache was not warm: {one.peer_compiles}")
        measured.append(one)
        say(
            f"cold start {number}/{rounds}: first answer {one.ours_first_s:.3f} s, peer {one.flax_first_s:.3f} s; "
            f"{len(cold_start.buckets)} buckets {one.ours_all_s:.3f} s, peer {one.flax_all_s:.3f} s, "
            f"a bare process {one.bare_all_s:.3f} s"
        )
    raw = {"buckets": cold_start.buckets, "before": asdict(before), "rounds": [asdict(one) for one in measured]}
    return Report("cold start, embed, warm caches", figures_of(measured, len(cold_start.buckets)), raw)


def figures_of(measured: Sequence[Round], bucket_count: int) -> list[Figure]:
    """Times, ratios pair by pair, and what the traces explain."""

    def column(name: str) -> list[float]:
        return [getattr(one, name) for one in measured]

    first, every = "exec to first answer", f"exec to all {bucket_count} buckets ready"
    figures = [
        Figure(f"{first}, warmpool", "s", tuple(column("ours_first_s"))),
        Figure(f"{first}, FastAPI + jit", "s", tuple(column("flax_first_s"))),
        Figure(f"{first}, FastAPI + jit, without flax", "s", tuple(column("plain_first_s"))),
        ratios(f"{first}, peer over warmpool", column("flax_first_s"), column("ours_first_s"), Target("at least", 1.5)),
        ratios(f"{first}, peer without flax over warmpool", column("plain_first_s"), column("ours_first_s")),
        Figure(f"{every}, warmpool", "s", tuple(column("ours_all_s"))),
        Figure(f"{every}, FastAPI + jit", "s", tuple(column("flax_all_s"))),
        Figure(f"{every}, FastAPI + jit, without flax", "s", tuple(column("plain_all_s"))),
        ratios(f"{every}, peer over warmpool", column("flax_all_s"), column("ours_all_s"), Target("at least", 5)),
        ratios(f"{every}, peer without flax over warmpool", column("plain_all_s"), column("ours_all_s")),
        Figure(
            "a bare process that loads and runs the same twelve, and does nothing else",
            "s",
            tuple(column("bare_all_s")),
        ),
        ratios(f"{every}, warmpool over the bare process", column("ours_all_s"), column("bare_all_s")),
        Figure(
            "leaf spans of the cold start over its wall time",
            "",
            tuple(spans.coverage(one.trace) for one in measured),
            Target("at least", 0.97),
        ),
        Figure(
            "cold start by its own trace (exec to ready)", "s", tuple(spans.duration_s(one.trace) for one in measured)
        ),
    ]
    return [*figures, *stage_figures([one.trace for one in measured])]


def stage_figures(traces: Sequence[list[spans.Span]]) -> list[Figure]:
    """How long each stage of the start took, in the order they begin, with the median of when that was."""
    rounds = [spans.stages(trace) for trace in traces]
    return [
        Figure(f"  from {begin_ms:.0f} ms: {name}", "ms", tuple(durations_ms))
        for name, begin_ms, durations_ms in spans.joined(rounds)
        if max(durations_ms) >= STAGE_MS_MIN
    ]
