"""Lanes that die: from SIGKILL to the next answer, to a new lane that can answer, and to everything warm again.

Where one lane dies the other answers; the new one is asked as soon as it says that it can, and how long that took is
compared with a process that compiles (`benchmarks.cold_jit`). Where both lanes die, both come up side by side, and the
next answer has to wait for that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.cold_jit import first_answer_s
from benchmarks.connection import STATUS_BACKOFF_S, Response, ask_once, poll
from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.questions import Question, sentence
from benchmarks.server import Server, warmpool
from benchmarks.status import STATUS, all_warm, lanes, model_ready, primary_lane, settled
from benchmarks.stores import Folders
from warmpool.circuit import FAILURES_MAX, WINDOW_S

START_S_MAX = 180.0
RESTART_S_MAX = 60.0
LIFE_S_MIN = WINDOW_S / (FAILURES_MAX - 1)  # a lane that is killed more often is taken for one that keeps failing


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds since the kill: of the primary lane, and `both_s` of both; beside it, those of cold jit processes."""

    answer_s: float
    ready_s: float
    first_s: float
    warm_s: float
    both_s: float
    flax_s: float
    plain_s: float


def restart(server: Server, question: Question) -> Restart:
    """Kill the primary lane and watch, and then both."""
    request = question.v2_request()
    flax_s, plain_s = first_answer_s(question, "flax"), first_answer_s(question, "plain")
    (old,) = kill(server, "primary")
    killed_s = time.perf_counter()

    def renewed(response: Response) -> bool:
        return primary_lane(response)["pid"] not in {None, old}

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
    served = question.check_v2(ask_once(server.port, request), server.name)
    first_s = time.perf_counter()
    assert served["lane"] == "primary", served
    _, warm_s = poll(
        server.port, STATUS, RESTART_S_MAX, lambda response: renewed(response) and all_warm(response), STATUS_BACKOFF_S
    )
    kill(server, "primary", "cpu")
    both_killed_s = time.perf_counter()
    question.check_v2(ask_once(server.port, request), server.name)
    both_s = time.perf_counter() - both_killed_s
    return Restart(
        answer_s=answered_s - killed_s,
        ready_s=ready_s - killed_s,
        first_s=first_s - killed_s,
        warm_s=warm_s - killed_s,
        both_s=both_s,
        flax_s=flax_s,
        plain_s=plain_s,
    )


def kill(server: Server, *names: str) -> list[int]:
    """Kill lanes, which have to be warm and to have lived for a while; their process ids."""
    time.sleep(LIFE_S_MIN)
    status, _ = poll(server.port, STATUS, RESTART_S_MAX, settled)
    pids = [lane["pid"] for lane in lanes(status) if lane["name"] in names]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


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
            say(
                f"lane restart {number}/{rounds}: first answer {one.first_s:.3f} s, cold jit {one.flax_s:.3f} s; "
                f"all warm {one.warm_s:.3f} s; both killed, first answer {one.both_s:.3f} s"
            )
        buckets = primary_lane(ask_once(server.port, STATUS))["planned"]
    first_s = [one.first_s for one in measured]
    flax_s, plain_s = [one.flax_s for one in measured], [one.plain_s for one in measured]
    over = "over the first answer of the new lane"
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
        Figure("SIGKILL of both lanes to the next answer", "s", tuple(one.both_s for one in measured)),
        Figure("SIGKILL to the first answer of the new lane", "s", tuple(first_s)),
        Figure("a cold jit process, exec to its answer", "s", tuple(flax_s)),
        Figure("the same without flax", "s", tuple(plain_s)),
        ratios(f"a cold jit process {over}", flax_s, first_s, Target("at least", 12)),
        ratios(f"the same without flax {over}", plain_s, first_s),
    ]
    return Report("lane restart, embed", figures, {"rounds": [asdict(one) for one in measured]})
