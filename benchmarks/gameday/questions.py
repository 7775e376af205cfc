"""What the instance of a game day is asked, and whether it is answered rightly: no two requests ask the same."""

from __future__ import annotations

import contextlib

import numpy as np
from numpy.typing import NDArray

from benchmarks.connection import ask_once
from benchmarks.gameday.load import Answer
from benchmarks.questions import Question, WrongAnswer, v2_output

FACTOR = 3.0  # of `benchmarks.gameday.model`
ROWS_MAX, WIDTH_MAX = 12, 16  # up to more rows than the largest bucket has


def question(number: int) -> Question:
    """Small whole numbers, so that every order of adding them gives the same; other ones for each number."""
    random = np.random.default_rng(number)
    rows = int(random.integers(1, ROWS_MAX + 1))
    if number % 3:
        x: NDArray[np.float32] = random.integers(-999, 1000, (rows, int(random.integers(1, WIDTH_MAX + 1)))).astype(
            np.float32
        )
        return Question("gameday:total", {"x": x}, x.sum(axis=1) * np.float32(FACTOR))
    x = random.integers(-999, 1000, rows).astype(np.float32)
    return Question("gameday:square", {"x": x}, x * x + np.float32(FACTOR))


def ask(port: int, number: int) -> Answer:
    """Ask the instance at a port what this number asks."""
    asked = question(number)
    try:
        response = ask_once(port, asked.v2_request())
    except OSError as error:
        return Answer(number, asked.model, 0, repr(error))
    if response.status != 200:
        return Answer(number, asked.model, response.status, response.body.decode(errors="replace"))
    lane, right = "", False
    with contextlib.suppress(WrongAnswer, ValueError):
        output, parameters = v2_output(response)
        lane = str(parameters["lane"])
        right = bool(np.array_equal(output, asked.expected))
    return Answer(number, asked.model, 200, lane=lane, right=right)
