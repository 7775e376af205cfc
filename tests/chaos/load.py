"""Callers that mix everything the tiny model can do, check every answer by hand, and count that each got just one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gameday import load
from benchmarks.gameday.load import Answer
from tests.instance_process import Inferred, InstanceProcess, inferred, tensors, wait_until
from tests.tiny import BIAS, IDS_MAX, MATRIX, METHODS
from warmpool import wire

REST_S = 0.05  # of a caller, while something is waited for that needs the processors
PATIENT = {wire.TIMEOUT_HEADER: "600000"}  # nobody is refused because a slow machine might answer late

Arrays = dict[str, np.ndarray]


def question(number: int) -> tuple[str, Arrays]:
    """A method and inputs that no other number has: an answer that was meant for another caller is a wrong one."""
    random = np.random.default_rng(number)
    name = tuple(METHODS)[number % len(METHODS)]
    rows = int(random.integers(1, 21))  # up to more than the largest bucket
    match name:
        case "predict":
            return name, {"x": random.normal(size=(rows, 4)).astype(np.float32)}
        case "tokens":
            seq = int(random.integers(1, 17))
            ids = random.integers(0, IDS_MAX + 1, (rows, seq)).astype(np.int32)
            return name, {"ids": ids, "mask": np.ones_like(ids)}
        case "scale":
            values = random.normal(size=int(random.integers(1, 11))).astype(np.float32)
            return name, {"values": values, "factor": np.array(random.normal(), np.float32)}
        case "kinds":
            numbers = {kind: random.integers(0, 100, rows) for kind in ("byte", "half", "brain")}
            return name, {"flag": random.random(rows) < 0.5, **numbers}
        case "invert":
            return name, {"x": random.normal(size=rows).astype(np.float32)}
        case _:
            return name, {"steps": random.integers(0, 20_000, rows).astype(np.int32)}


def expected(name: str, given: Arrays) -> Arrays:
    """The answer, by numpy alone."""
    match name:
        case "predict":
            return {"y": given["x"] @ MATRIX + BIAS, "sum": given["x"].sum(-1)}
        case "tokens":
            twice = np.pad(np.repeat(given["ids"], 2, axis=1), ((0, 0), (1, 0)))
            return {"total": (given["ids"] * given["mask"]).sum(-1), "doubled": twice}
        case "scale":
            return {"scaled": given["values"] * given["factor"], "total": given["values"].sum()}
        case "kinds":
            doubled = {kind: 2 * given[kind] for kind in ("half", "brain")}  # exact: all are small whole numbers
            return {"flag": ~given["flag"], "byte": given["byte"] + 1, **doubled}
        case "invert":
            return {"output": 1 / given["x"]}
        case _:
            return {"counted": given["steps"]}


def is_right(answer: Inferred, wanted: Arrays) -> bool:
    """Whether it has these outputs, in these shapes, within float32's rounding."""
    found = answer.outputs
    return found.keys() == wanted.keys() and all(
        found[name].shape == np.shape(wanted[name])
        and np.allclose(found[name].astype(np.float64), np.asarray(wanted[name], np.float64), rtol=1e-4, atol=1e-5)
        for name in wanted
    )


class Load(load.Load):
    """Callers of the tiny model.

    Args:
        instance: Is asked.
        callers: How many ask at a time.
    """

    def __init__(self, instance: InstanceProcess, callers: int = 8) -> None:
        super().__init__(partial(ask, instance), callers, REST_S)

    def wait_for(self, more: int, lane: str = "") -> None:
        """Wait until so many more were served, by a lane if one is named; meanwhile nobody rests."""
        before = self.served(lane)
        self.every_s = 0.0
        wait_until(lambda: self.served(lane) >= before + more)
        self.every_s = REST_S

    def check(self, allowed: Collection[int] = ()) -> Counter[int]:
        """How many got which status, after the end: each one, none wrongly, none another status than 200 and these."""
        assert not self.unanswered, "one answer each"
        wrong = [answer for answer in self.answers if not answer.right]
        assert not wrong, wrong[:3]
        refused = [answer for answer in self.answers if answer.status not in {200, *allowed}]
        assert not refused, refused[:3]
        return Counter(answer.status for answer in self.answers)


def ask(instance: InstanceProcess, number: int) -> Answer:
    """Ask what this number asks."""
    name, given = question(number)
    try:
        reply = instance.infer_reply(f"tiny:{name}", tensors(name, given), headers=PATIENT)
    except OSError as error:
        return Answer(number, name, 0, repr(error))
    if reply.status != 200:
        return Answer(number, name, reply.status, reply.body.decode(errors="replace"))
    answer = inferred(reply)
    right = is_right(answer, expected(name, given))
    return Answer(number, name, 200, lane=str(answer.parameters["lane"]), right=right)


def within(recovery_s_max: float, recovered: Callable[[], Any]) -> float:
    """Wait for what has to be so within a bound; after how many seconds it was."""
    started_s = time.monotonic()
    wait_until(recovered, recovery_s_max)
    return time.monotonic() - started_s
