"""A lane that dies: from SIGKILL to the next answer, to a new lane that can answer, and to everything warm again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.connection import STATUS_BACKOFF_S, Response, ask_once, poll
from benchmarks.figures import Figure, Report, Target
from benchmarks.questions import Question, sentence
from benchmarks.server import Server, warmpool
from benchmarks.status import STATUS, all_warm, model_ready, primary_lane, settled
from benchmarks.stores import Folders

START_S_MAX = 180.0
RESTART_S_MAX = 60.0
LIFE_S_MIN = 1.5  # a lane that lived shorter is taken for one that dies of what it does, and restarted later


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds since the kill."""

    answer_s: float
    ready_s: float
    warm_s: float


def restart(server: Server, question: Question) -> Restart:
    """Kill the primary lane, which has to be warm, and watch."""
    request = question.v2_request()
    time.sleep(LIFE_S_MIN)
    status, _ = poll(server.port, STATUS, RESTART_S_MAX, settled)
    old = primary_lane(status)["pid"]

    def renewed(response: Response) -> bool:
        return primary_lane(response)["pid"] not in {None, old}

    killed_s = time.perf_counter()
    os.kill(old, signal.SIGKILL)
    # Once only: answering takes time from the lane that is coming up.
    answer = ask_once(server.port, request)
    answered_s = time.perf_counter()
    question.check_v2(answer, server.name)
    _, ready_s = poll(
        server.port,
        STATUS,
        RESTART_S_MAX,
        lambda response: renewed(response) and model_ready(response, question.model),
    )
    _, warm_s = poll(
        server.port, STATUS, RESTART_S_MAX, lambda response: renewed(response) and all_warm(response), STATUS_BACKOFF_S
    )
    served = question.check_v2(ask_once(server.port, request), server.name)
    assert served["lane"] == "primary", served
    return Restart(answered_s - killed_s, ready_s - killed_s, warm_s - killed_s)


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure, on one instance."""
    store = folders.store("embed", "benchmarks/twelve.py")
    question = sentence()
    measured: list[Restart] = []
    with warmpool(store, folders.log("warmpool-restart")) as server:
        poll(server.port, STATUS, START_S_MAX, settled)
        for number in range(1, rounds + 1):
            one = restart(server, question)
            measured.append(one)
            say(f"lane restart {number}/{rounds}: ready after {one.ready_s:.3f} s, all warm after {one.warm_s:.3f} s")
        buckets = primary_lane(ask_once(server.port, STATUS))["planned"]
    figures = [
        Figure("SIGKILL to the next answer, by any lane", "s", tuple(one.answer_s for one in measured)),
        Figure(
            "SIGKILL to a new lane that can answer every shape",
            "s",
            tuple(one.ready_s for one in measured),
            Target("at most", 1.0),
        ),
        Figure(
            f"SIGKILL to all {buckets} buckets warm", "s", tuple(one.warm_s for one in measured), Target("at most", 1.0)
        ),
    ]
    return Report("lane restart, embed", figures, {"rounds": [asdict(one) for one in measured]})
