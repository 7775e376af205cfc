"""Whatever goes wrong with one request, at whatever stage: it fails alone, and those beside it get their answers.

Each stage is made to fail for the request whose rows have POISON in them, as a mistake of ours there would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import grpc
import numpy as np
import pytest
from open_inference.grpc import protocol

from tests.warmpool.fake_lane import World, manual_clock, rest
from tests.warmpool.served import doubling
from tests.warmpool.stepped_loop import SteppedLoop
from tests.warmpool.test_disconnect import Front, Visitor
from warmpool import batches, dataplane, grpc_app, grpc_messages, rows_form
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
    "taking in the rest of it": (LaneScheduler, "_promise", lambda _, item, *__: item.inputs if item.rows != 8 else []),
    "padding in": (batches, "fill", lambda _, __, sources: sources),
    "cutting out": (Batch, "cut", lambda _, part, *__: part.inputs),
    "putting together": (dataplane, "joined", lambda results: results[0].outputs),
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


@manual_clock
async def test_what_could_not_be_written_for_a_neighbour_has_both_its_runs_still(monkeypatch):
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    fails_for_poison(monkeypatch, batches, "fill", lambda _, __, sources: sources)
    await world.ask(DOUBLE, [0])
    poison, neighbour = [await world.ask(DOUBLE, [number]) for number in (POISON, 2)]
    world.primary.finish()
    world.primary.fail()
    world.primary.finish()
    await rest()
    assert isinstance(poison.exception(), Mistake)
    assert neighbour.result().outputs[0].tolist() == [4]


@pytest.mark.parametrize("broken", ["costs", "told"])
def test_a_mistake_in_what_is_noted_of_a_batch_costs_nobody_an_answer(broken, monkeypatch):
    @manual_clock
    async def story():
        world = World()
        world.primary.warms(DOUBLE, batch=1).warms(DOUBLE, batch=8)

        def mistaken(*_):
            raise Mistake(broken)

        if broken == "costs":
            monkeypatch.setattr(world.primary.costs, "observe", mistaken)
        else:
            world.batcher._finished = mistaken
        tasks = await asked(world, [1, 2], [3, 4])
        assert [outputs(task) for task in tasks] == [[2, 4], [6, 8]]

    story()


# Around the data plane: what a protocol does with a request and an answer


def in_body(body: bytes) -> Arrays:
    return [[POISON] if str(POISON).encode() in body else []]


def of_answer(answer: Answer, *_: object) -> Arrays:
    return answer.outputs.values()


HTTP_STAGES: dict[str, tuple[object, str, Callable[..., Arrays]]] = {
    "parsing": (rows_form, "parse", in_body),
    "decoding": (rows_form, "decode", lambda _, parsed: [parsed.instances]),
    "converting": (Answer, "tensors", of_answer),
    "encoding": (rows_form, "encode", lambda _, answer: of_answer(answer)),
}


@pytest.mark.parametrize("stage", HTTP_STAGES)
def test_over_http_a_request_that_fails_at_any_stage_is_a_500_of_its_own(stage, monkeypatch, caplog):
    fails_for_poison(monkeypatch, *HTTP_STAGES[stage])
    loop = SteppedLoop()
    fronts: list[Front] = []
    loop.settle(lambda: fronts.append(Front(loop)))
    (front,) = fronts
    visitors = [Visitor(front, *values) for values in ([1], [2], [POISON], [4])]
    for visitor in visitors:
        loop.settle(visitor.connect)
        for _ in range(3):
            loop.settle(visitor.send)
    for _ in range(4):
        loop.settle(front.finish)
    assert [visitor.answered for visitor in visitors] == [True, True, False, True]
    assert visitors[2].socket.written.startswith(b"HTTP/1.1 500 ")
    assert visitors[2].socket.written.endswith(b'{"error":"internal error"}')
    assert sorted(front.recorded) == [200, 200, 200, 500]
    assert (front.world.batcher.rows_waiting, front.byte_budget.held_bytes) == (0, 0)
    assert [record.message for record in caplog.records] == ["request failed"]
    loop.close()


class Call:
    """The context of a gRPC call."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def abort(self, code: grpc.StatusCode, *_: object) -> None:
        raise grpc.RpcError(code)


def of_message(message: Any, *_: object) -> Arrays:
    return [np.frombuffer(raw, np.int32) for raw in message.raw_input_contents]


GRPC_STAGES: dict[str, tuple[object, str, Callable[..., Arrays]]] = {
    "decoding": (grpc_messages, "tensors", of_message),
    "converting": (Answer, "tensors", of_answer),
    "encoding": (grpc_messages, "response", lambda _, answer, __: of_answer(answer)),
}


@pytest.mark.parametrize("stage", GRPC_STAGES)
def test_over_grpc_a_request_that_fails_at_any_stage_is_an_internal_error_of_its_own(stage, monkeypatch, caplog):
    fails_for_poison(monkeypatch, *GRPC_STAGES[stage])

    @manual_clock
    async def story():
        loop = asyncio.get_running_loop()
        front = Front(loop)
        servicer = grpc_app.Servicer(cast("Any", front))
        handler = grpc_app.guarded(servicer.ModelInfer, protocol.ModelInferRequest, lambda: 1 << 20)
        calls = []
        for value in (1, 2, POISON, 4):
            made = protocol.ModelInferRequest(model_name="tiny", raw_input_contents=[np.int32(value).tobytes()])
            made.inputs.add(name="x", datatype="INT32", shape=[1])
            calls.append(loop.create_task(handler(made.SerializeToString(), Call())))
            await rest()
        for _ in calls:
            front.finish()
            await rest()
        found = [
            int(np.frombuffer(call.result().raw_output_contents[0], np.int32)[0])
            for call in calls
            if call is not calls[2]
        ]
        assert found == [2, 4, 8]
        assert repr(calls[2].exception()) == repr(grpc.RpcError(grpc.StatusCode.INTERNAL))
        assert sorted(front.recorded) == ["INTERNAL", "OK", "OK", "OK"]
        assert (front.world.batcher.rows_waiting, front.byte_budget.held_bytes) == (0, 0)

    story()
    assert [record.message for record in caplog.records] == ["call failed"]
