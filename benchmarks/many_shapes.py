"""Ready for sixty-four shapes, against a server that compiles them at its start.

Ready means here what it means to a caller: a request of any of these shapes is answered and waits for no compile. Ours
is ready as soon as one bucket that covers all of them is warm, and goes on to load the rest; when these are warm is a
figure of its own. The other server is ready when it has compiled them all, before it listens; it has no cache to start
from, since the question is what compiling costs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cold_start import START_S_MAX, first_answer
from benchmarks.connection import STATUS_BACKOFF_S, http_request, poll
from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.questions import sentence
from benchmarks.server import peer, warmpool
from benchmarks.status import STATUS, all_warm, primary_lane
from benchmarks.stores import Folders, buckets_of, model_in

SHAPES = 64
READY = http_request("GET", "/v2/health/ready")


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds since exec."""

    ready_s: float
    warm_s: float
    compiled_s: float


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure.

    Raises:
        WrongAnswer: A server answered with something else than the reference.
    """
    store = folders.store("embed", "benchmarks/sixty_four.py")
    buckets = [(batch, seq) for batch, seq in buckets_of(model_in(store, "embed"))]
    assert len(buckets) == SHAPES, buckets
    question = sentence()
    measured: list[Round] = []
    for number in range(1, rounds + 1):
        with warmpool(store, folders.log("warmpool-64")) as server:
            _, ready_s = poll(server.port, READY, START_S_MAX, lambda response: response.status == 200)
            question.check_v2(first_answer(server, question.v2_request())[0], server.name)
            status, warm_s = poll(server.port, STATUS, START_S_MAX, all_warm, STATUS_BACKOFF_S)
            assert primary_lane(status)["planned"] == SHAPES, primary_lane(status)
            ours = (ready_s - server.exec_s, warm_s - server.exec_s)
        with (
            tempfile.TemporaryDirectory() as empty,
            peer("flax", Path(empty), folders.log("peer-64"), buckets) as server,
        ):
            response, compiled_s = first_answer(server, question.peer_request())
            question.check_peer(response, server.name)
            measured.append(Round(*ours, compiled_s - server.exec_s))
        one = measured[-1]
        times = f"ready {one.ready_s:.2f} s, all warm {one.warm_s:.2f} s, compiled {one.compiled_s:.1f} s"
        say(f"many shapes {number}/{rounds}: {times}")
    ready = [one.ready_s for one in measured]
    warm = [one.warm_s for one in measured]
    compiled = [one.compiled_s for one in measured]
    figures = [
        Figure(f"exec to ready for {SHAPES} shapes", "s", tuple(ready)),
        Figure(f"exec to all {SHAPES} buckets warm", "s", tuple(warm)),
        Figure(f"exec to {SHAPES} shapes compiled, FastAPI + jit without a cache", "s", tuple(compiled)),
        ratios("compiled over ready", compiled, ready, Target("at least", 100.0)),
        ratios("compiled over all warm", compiled, warm),
    ]
    return Report(f"{SHAPES} shapes, embed", figures, {"rounds": [asdict(one) for one in measured]})
