"""A batch for which there was no room runs in smaller ones; what nothing warm covers is loaded, or runs in pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.fake_lane import FakeLane, World, manual_clock, rest
from tests.warmpool.served import doubling, method, part, tensor
from warmpool.errors import LaneFailed, NotWarm

DOUBLE = doubling()
SCALED = method(
    [tensor("x", "int32", "batch"), tensor("factor", "int32")], [tensor("y", "int32", "batch")], name="scaled"
)


def short(lane: FakeLane) -> None:
    """There is no room for the batch that runs, and none for what is at least as large: a lane marks that first."""
    assert lane.batch is not None
    chosen, served = lane.batch.executable, lane.batch.method
    for candidate in [*lane.warm[served]]:
        if candidate.bucket["batch"] >= chosen.bucket["batch"]:
            lane.warm[served].remove(candidate)
            lane.plan[served].remove(candidate.bucket)
    batch, lane.batch = lane.batch, None
    lane._batcher.failed(batch, out_of_memory=True)


def answered(task: asyncio.Task[Any]) -> list[int]:
    assert task.done()
    found: list[int] = task.result().outputs[0].tolist()
    return found


@manual_clock
async def test_a_batch_for_which_there_is_no_room_runs_again_in_halves():
    world = World()
    world.primary.warms(DOUBLE, batch=4).warms(DOUBLE, batch=8)
    first = await world.ask(DOUBLE, [0])
    tasks = [await world.ask(DOUBLE, [number]) for number in range(1, 9)]
    world.primary.finish()
    assert world.primary.rows[1] == [[number] for number in range(1, 9)]
    short(world.primary)
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert world.primary.rows[2:] == [[[1], [2], [3], [4]], [[5], [6], [7], [8]]]
    assert [answered(task) for task in (first, *tasks)] == [[2 * number] for number in range(9)]


@manual_clock
async def test_a_part_that_was_alone_runs_in_halves_and_is_answered_whole_and_in_order():
    world = World()
    world.primary.warms(DOUBLE, batch=4).warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, range(7))
    short(world.primary)
    assert world.primary.rows[1] == [[0, 1, 2, 3]]
    assert world.batcher.rows_waiting == 3
    world.primary.finish()
    await rest()
    assert not task.done()
    world.primary.finish()
    await rest()
    assert world.primary.rows[2] == [[4, 5, 6]]
    assert answered(task) == [0, 2, 4, 6, 8, 10, 12]
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_what_finds_no_room_though_smaller_runs_elsewhere_if_it_can():
    world = World()
    world.primary.warms(DOUBLE, batch=2).warms(DOUBLE, batch=4).warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, range(4))
    world.cpu.warms(DOUBLE, batch=8)
    short(world.primary)
    assert world.primary.rows[1:] == [[[0, 1]]]
    short(world.primary)
    assert world.primary.batch is None, "what is as small is not tried there again"
    assert world.cpu.rows == [[[0, 1], [2, 3]]]
    world.cpu.finish()
    await rest()
    assert answered(task) == [0, 2, 4, 6]


@manual_clock
async def test_what_finds_no_room_again_and_again_fails_and_takes_nobody_along():
    world = World()
    for rows in (1, 2, 4, 8):
        world.primary.warms(DOUBLE, batch=rows)
    task = await world.ask(DOUBLE, range(8))
    short(world.primary)
    other = await world.ask(DOUBLE, [7])
    assert world.primary.rows[1] == [[0, 1, 2, 3]]
    short(world.primary)
    while not task.done():
        assert world.primary.batch is not None
        has_the_first = 0 in world.primary.batch.parts[0].inputs[0]
        (short if has_the_first else FakeLane.finish)(world.primary)
        await rest()
    with pytest.raises(LaneFailed, match="it was run 3 times and failed"):
        task.result()
    while world.primary.batch:
        world.primary.finish()
    await rest()
    assert answered(other) == [14]
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_where_nothing_smaller_is_warm_it_is_told_to_come_again():
    world = World()
    world.primary.warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, [1, 2])
    short(world.primary)
    await rest()
    with pytest.raises(NotWarm, match="no executable on this machine that covers batch=2"):
        task.result()


@manual_clock
async def test_what_the_other_lane_has_warm_runs_there():
    world = World()
    world.primary.warms(DOUBLE, batch=8)
    world.cpu.warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, range(8))
    short(world.primary)
    assert world.cpu.rows == [[[*range(8)]]]
    world.cpu.finish()
    await rest()
    assert answered(task) == [2 * number for number in range(8)]


@manual_clock
async def test_a_caller_who_leaves_takes_all_pieces_along_but_the_one_that_runs():
    world, errors = World(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    world.primary.warms(DOUBLE, batch=2).warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, range(8))
    short(world.primary)
    assert world.batcher.rows_waiting == 6
    task.cancel()
    await rest()
    assert world.batcher.rows_waiting == 0
    world.primary.finish()
    await rest()
    assert len(world.primary.batches) == 2
    assert task.cancelled()
    assert errors == []


@manual_clock
async def test_one_piece_that_fails_fails_the_whole_and_the_others_are_not_run():
    world = World()
    world.primary.warms(DOUBLE, batch=2).warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, range(8))
    short(world.primary)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for _ in range(5):  # one of four fails a second time
        assert not task.done()
        world.primary.fail()
    await rest()
    with pytest.raises(LaneFailed):
        task.result()
    assert world.batcher.rows_waiting == 0
    world.primary.finish()  # the piece that had begun meanwhile
    await rest()
    assert world.primary.batch is None
    assert errors == []


@manual_clock
async def test_a_close_settles_what_runs_in_pieces():
    world = World()
    world.primary.warms(DOUBLE, batch=2).warms(DOUBLE, batch=8)
    task = await world.ask(DOUBLE, range(8))
    short(world.primary)
    world.batcher.close()
    await rest()
    with pytest.raises(NotWarm, match="shutting down"):
        task.result()
    world.primary.finish()
    assert world.batcher.rows_waiting == 0


# What a lane let go of


@manual_clock
async def test_rows_are_split_by_what_may_come_where_nothing_is_warm_and_not_by_what_never_can():
    world = World()
    assert world.batcher.chunk_rows(DOUBLE, {"batch": 50}) == 8, "nothing is known yet"
    world.primary.plans(DOUBLE, {"batch": 4})
    assert world.batcher.chunk_rows(DOUBLE, {"batch": 50}) == 4


@manual_clock
async def test_what_nothing_warm_covers_is_asked_for_from_the_first_lane_that_may_have_it():
    world = World()
    world.primary.plans(DOUBLE, {"batch": 4})
    world.cpu.plans(DOUBLE, {"batch": 8})
    await world.ask(DOUBLE, [1, 2])
    assert (world.primary.wanted, world.cpu.wanted) == ([(DOUBLE, {"batch": 2})], [])
    task = await world.ask(DOUBLE, range(8))
    assert (len(world.primary.wanted), world.cpu.wanted) == (2, [(DOUBLE, {"batch": 8})])
    world.cpu.warms(DOUBLE, batch=8)
    world.cpu.finish()
    world.cpu.finish()
    await rest()
    assert answered(task) == [2 * number for number in range(8)]


@manual_clock
async def test_a_lane_is_told_what_runs_elsewhere_for_want_of_something_warm_on_it():
    world = World()
    world.primary.plans(DOUBLE, {"batch": 4})
    world.cpu.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [1, 2])
    assert world.primary.passed_over == world.cpu.batches
    assert world.cpu.passed_over == []
    assert world.primary.wanted == [], "nobody waits for it"


@manual_clock
async def test_what_waits_for_an_executable_that_goes_runs_in_pieces_on_what_stays():
    world = World()
    world.primary.warms(DOUBLE, batch=2).warms(DOUBLE, batch=4)
    first = await world.ask(DOUBLE, [1])
    task = await world.ask(DOUBLE, [1, 2, 3, 4])
    del world.primary.warm[DOUBLE][1]
    world.batcher.changed()
    assert world.batcher.rows_waiting == 4
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert world.primary.rows == [[[1]], [[1, 2]], [[3, 4]]]
    assert (answered(first), answered(task)) == ([2], [2, 4, 6, 8])


@given(st.integers(1, 40), st.integers(1, 40))
def test_pieces_have_all_rows_once_and_share_what_has_none(rows: int, at_most: int) -> None:
    async def cut() -> None:
        x = np.arange(rows, dtype=np.int32)
        whole = part(SCALED, {"batch": rows}, [x, np.array(3, np.int32)])
        pieces = whole.cut_into(at_most)
        assert [one.rows for one in pieces[:-1]] == [at_most] * (len(pieces) - 1)
        assert 1 <= pieces[-1].rows <= at_most
        np.testing.assert_array_equal(np.concatenate([one.inputs[0] for one in pieces]), x)
        assert all(one.inputs[1] is whole.inputs[1] for one in pieces)
        assert not whole.pieces, "that is for what falls apart"

    asyncio.run(cut())
