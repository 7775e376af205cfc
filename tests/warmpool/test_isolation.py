"""Whatever goes wrong with one request, at whatever stage: it fails alone, and those beside it get their answers.

Each stage is made to fail for the request whose rows have POISON in them, as a mistake of ours there would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tests.warmpool.fake_lane import World, manual_clock, rest
from tests.warmpool.served import doubling
from warmpool import batches, dataplane
from warmpool.batches import Batch
from warmpool.dataplane import Answer, DataPlane
from warmpool.scheduling.scheduler import LaneScheduler
from warmpool.tensors import Tensor
from warmpool.validation import validated

DOUBLE = doubling()
POISON = 13
TIMEOUT_S = 1e3

Arrays = Iterable[Any]


class Mistake(Exception):
    """What nobody expects."""


def fails_for_poison(monkeypatch, owner: object, name: str, numbers: Callable[..., Arrays]) -> None:
    """Make a function fail where `numbers`, of its arguments, has poison."""
    real = getattr(owner, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        if any(np.isin(array, (POISON, 2 * POISON)).any() for array in numbers(*arguments, **named)):
            raise Mistake(name)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


def of_tensors(_: object, inputs: dict[str, Tensor], *__: object) -> Arrays:
    return [np.frombuffer(tensor.data, np.int32) for tensor in inputs.values()]


def of_parts(_: object, parts: Any, *__: object) -> Arrays:
    return [part.inputs[0] for part in parts]


STAGES: dict[str, tuple[object, str, Callable[..., Arrays]]] = {
    "validating": (dataplane, "validated", of_tensors),
    "splitting": (DataPlane, "_parts", lambda _, __, arrays, *___: arrays),
    "taking in": (LaneScheduler, "offer", of_parts),
    "padding in": (batches, "fill", lambda _, __, sources: sources),
    "cutting out": (Batch, "cut", lambda _, part, *__: part.inputs),
    "putting together": (dataplane, "_joined", lambda results: results[0].outputs),
}


def ask(world: World, *values: int) -> asyncio.Task[Answer]:
    plane = DataPlane(world.batcher)
    given = {"x": Tensor.of("INT32", list(values))}
    return asyncio.get_running_loop().create_task(plane.infer(DOUBLE, given, timeout_s=TIMEOUT_S))


async def asked(world: World, *requests: list[int]) -> list[asyncio.Task[Answer]]:
    """Ask while the lane is busy, so that all wait together; then let everything run."""
    first = ask(world, 0)
    await rest()
    assert world.primary.batch is not None
    tasks = [ask(world, *values) for values in requests]
    await rest()
    for _ in range(20):
        if not world.primary.idle:
            world.primary.finish()
        await rest()
    assert outputs(first) == [0]
    return tasks


def outputs(task: asyncio.Task[Answer]) -> list[int]:
    assert task.done()
    return task.result().outputs["y"].tolist()


@pytest.mark.parametrize("rows", [2, 10], ids=["whole", "split"])
@pytest.mark.parametrize("poisonous", range(4))
@pytest.mark.parametrize("stage", STAGES)
def test_a_request_that_fails_at_any_stage_fails_alone(stage, poisonous, rows, monkeypatch):
    @manual_clock
    async def story():
        world = World()
        world.primary.warms(DOUBLE, batch=1).warms(DOUBLE, batch=8)
        fails_for_poison(monkeypatch, *STAGES[stage])
        requests = [[number + 1, number + 2] for number in range(4)]
        requests[poisonous] = [POISON] * rows
        tasks = await asked(world, *requests)
        for number, task in enumerate(tasks):
            if number == poisonous:
                assert isinstance(task.exception(), Mistake)
            else:
                assert outputs(task) == [2 * number + 2, 2 * number + 4]
        assert (world.batcher.rows_waiting, world.batcher.waiting(), world.primary.batch) == (0, [], None)
        later = await asked(world, [1, 2])
        assert outputs(later[0]) == [2, 4], "and what comes later is served"

    story()


@manual_clock
async def test_a_request_whose_sizes_are_not_those_of_its_rows_fails_alone(monkeypatch):
    """What it has more than it says would lie where the next one's rows are."""
    world = World()
    world.primary.warms(DOUBLE, batch=1).warms(DOUBLE, batch=8)

    def mistaken(*arguments):
        arrays, sizes = validated(*arguments)
        return arrays, {"batch": 1} if POISON in arrays[0] else sizes

    monkeypatch.setattr(dataplane, "validated", mistaken)
    tasks = await asked(world, [1, 2], [POISON, POISON, POISON], [3, 4])
    assert isinstance(tasks[1].exception(), AssertionError)
    assert [outputs(tasks[0]), outputs(tasks[2])] == [[2, 4], [6, 8]]
