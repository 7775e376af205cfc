"""Requests as every protocol makes them: split, queued whole or not at all, put together again."""

import asyncio

import numpy as np
import pytest

from cache.local_store import LocalStore
from tests.warmpool.fake_lane import World, manual_clock, rest
from tests.warmpool.served import doubling, method, tensor
from tests.warmpool.stored_version import put
from warmpool.batcher import Batcher
from warmpool.catalog import Catalog, read_version
from warmpool.dataplane import DataPlane
from warmpool.errors import NotWarm, Overloaded, TooLarge
from warmpool.tensors import Tensor
from warmpool.version_routing import NOTHING_WISHED, Wish

DOUBLE = doubling()
SHARED = method(
    [tensor("x", "int32", "batch"), tensor("shift", "int32")], [tensor("y", "int32", "batch")], name="shared"
)


def numbers(count):
    return Tensor.of("INT32", list(range(count)))


async def finish_all(world):
    await rest()
    while world.primary.batch:
        world.primary.finish()
    await rest()


async def ask(world, served, inputs):
    task = asyncio.get_running_loop().create_task(DataPlane(world.batcher).infer(served, inputs, timeout_s=1e6))
    await finish_all(world)
    return await task


@manual_clock
async def test_rows_beyond_the_largest_bucket_are_split_and_come_back_in_order():
    world = World()
    world.primary.warms(DOUBLE, batch=1)
    world.primary.warms(DOUBLE, batch=4)
    answer = await ask(world, DOUBLE, {"x": numbers(10)})
    assert answer.outputs["y"].tolist() == [2 * number for number in range(10)]
    assert [len(rows) for batch in world.primary.rows for rows in batch] == [4, 4, 2]
    assert (answer.served()["parts"], answer.served()["rows"]) == (3, 10)


@manual_clock
async def test_rows_that_share_an_input_are_split_too_and_the_shared_input_is_not():
    world = World()
    world.primary.warms(SHARED, batch=1)
    world.primary.warms(SHARED, batch=8)
    answer = await ask(world, SHARED, {"x": numbers(20), "shift": Tensor.of("INT32", 7)})
    assert answer.outputs["y"].tolist() == [2 * number for number in range(20)]
    assert [[part.inputs[1].tolist() for part in batch.parts] for batch in world.primary.batches] == [[7], [7], [7]]


@manual_clock
async def test_a_request_that_does_not_fit_the_queue_is_refused_before_any_of_it_runs():
    world = World(rows_max=10)
    world.primary.warms(DOUBLE, batch=4)
    with pytest.raises(TooLarge, match="11 rows, allowed in one request: 10"):
        await ask(world, DOUBLE, {"x": numbers(11)})
    assert world.primary.batches == []
    blocker = await world.ask(DOUBLE, [1])
    waiting = await world.ask(DOUBLE, [1, 2, 3])
    with pytest.raises(Overloaded, match="3 rows wait, 10 may"):
        await DataPlane(world.batcher).infer(DOUBLE, {"x": numbers(8)}, timeout_s=1e6)
    assert world.batcher.rows_waiting == 3
    await finish_all(world)
    assert (blocker.result().outputs[0].tolist(), waiting.result().outputs[0].tolist()) == ([2], [2, 4, 6])


@manual_clock
async def test_when_one_part_fails_the_others_leave_the_queue():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    plane = DataPlane(world.batcher)
    task = asyncio.get_running_loop().create_task(plane.infer(DOUBLE, {"x": numbers(12)}, timeout_s=1e6))
    await rest()
    assert world.batcher.rows_waiting == 8
    world.batcher.withdraw([DOUBLE], "it is broken")
    world.primary.finish()
    await rest()
    with pytest.raises(NotWarm, match="it is broken"):
        await task
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_no_rows_give_empty_outputs_and_run_nothing():
    world = World()
    answer = await ask(world, DOUBLE, {"x": Tensor.of("INT32", [], [0])})
    assert answer.outputs["y"].shape == (0,)
    assert answer.outputs["y"].dtype == np.int32
    assert answer.served() == {"rows": 0, "parts": 0, "step": "exact"}


def test_what_names_no_version_gets_the_one_that_the_store_calls_stable_and_no_other(tmp_path):
    store = LocalStore(tmp_path)
    for version in ("1", "2"):
        put(store, "toy", version)
    plane = DataPlane(Batcher(10, lambda *_: None))
    catalog = plane.catalog = Catalog(others={"toy/2": read_version(store, "toy", "2")}, named={"toy": "1"})
    plane.warm["toy"] = frozenset({"2"})
    for asked in (plane.model, plane.method, plane.candidates, lambda name: plane.choose(name, NOTHING_WISHED)):
        with pytest.raises(NotWarm, match="the stable version of model 'toy' is not here yet; see /v1/status"):
            asked("toy")
    assert plane.choose("toy", Wish("2")).version == "2"
    assert [one.version for one in plane.candidates("toy", "2")] == ["2"]
    catalog.others["toy/1"] = read_version(store, "toy", "1")
    assert plane.choose("toy", NOTHING_WISHED).version == "1"
    assert [one.version for one in plane.candidates("toy")] == ["1", "2"]
    catalog.models["toy"] = catalog.others.pop("toy/2")
    assert plane.choose("toy", NOTHING_WISHED).version == "2", "until the new one takes over"
