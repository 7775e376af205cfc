"""What nothing warm covers: held for what is being made, if that comes in time; and which step each answer took."""

from __future__ import annotations

from tests.warmpool.fake_lane import World, manual_clock, pass_s, rest
from tests.warmpool.served import Told, doubling, method, tensor
from warmpool.cold_queue import IN_VAIN
from warmpool.errors import DeadlineExceeded, NotWarm
from warmpool.fallback import Step

DOUBLE = doubling()
OTHER = doubling("other")
ROWS = method([tensor("x", "int32", "batch", "seq")], [tensor("y", "int32", "batch", "seq")], name="rows")


def foretold(**ready_s: float) -> tuple[World, Told]:
    """A world in which methods of these names become warm after so many seconds."""
    world = World()
    told = Told({method: ready_s[method.name] for method in (DOUBLE, OTHER, ROWS) if method.name in ready_s})
    world.batcher.cold.forecast = told
    return world, told


def refused(task):
    error = task.exception()
    assert isinstance(error, NotWarm)
    return error.retry_after_s


@manual_clock
async def test_a_request_is_held_for_what_is_made_in_its_time_and_told_when_to_come_again_for_what_is_not():
    world, _ = foretold(double=20.0, other=40.0)
    held, hurried = await world.ask(DOUBLE, [1, 2], wait_s=30), await world.ask(OTHER, [3], wait_s=30)
    nothing = await world.ask(ROWS, [[1]], wait_s=30, seq=1)
    assert not held.done()
    assert (refused(hurried), refused(nothing)) == (40.0, 10.0)
    assert world.batcher.rows_waiting == 2
    world.cpu.warms(DOUBLE, batch=2).finish()
    await rest()
    assert (held.result().outputs[0].tolist(), held.result().step) == ([2, 4], Step.HELD)


@manual_clock
async def test_what_is_made_for_fewer_rows_than_were_held_runs_them_in_pieces():
    world, told = foretold(double=5.0)
    held = await world.ask(DOUBLE, [1, 2, 3], wait_s=30)
    assert told.asked == [{"batch": 1}], "an executable for one row is enough"
    world.primary.plans(DOUBLE, {"batch": 2})
    told.ready_s.clear()
    world.batcher.changed()
    await rest()
    assert not held.done(), "it is made, and being loaded"
    assert world.primary.wanted[-1] == (DOUBLE, {"batch": 1})
    world.primary.warms(DOUBLE, batch=2)
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert held.result().outputs[0].tolist() == [2, 4, 6]
    assert held.result().step is Step.HELD


@manual_clock
async def test_who_was_held_for_what_will_not_be_made_after_all_is_told_so_at_once():
    world, told = foretold(double=5.0, other=5.0)
    held, other = await world.ask(DOUBLE, [1], wait_s=30), await world.ask(OTHER, [1], wait_s=30)
    del told.ready_s[DOUBLE]
    world.batcher.changed()
    await rest()
    assert refused(held) == 10.0
    assert not other.done()
    await pass_s(10)
    told.ready_s[OTHER] = 21.0
    world.batcher.changed()
    await rest()
    assert refused(other) == 21.0, "it takes longer than the 20 s that are left"


@manual_clock
async def test_who_was_held_in_vain_is_told_when_to_come_again_and_who_had_something_warm_that_it_is_late():
    world, told = foretold(double=5.0)
    world.primary.warms(OTHER, batch=1)
    blocker = await world.ask(OTHER, [0])
    held, late = await world.ask(DOUBLE, [1, 1], wait_s=6), await world.ask(OTHER, [1], wait_s=6)
    world.primary.plans(ROWS, {"batch": 1, "seq": 4})
    loading = await world.ask(ROWS, [[1]], wait_s=6, seq=1)
    told.ready_s[DOUBLE] = 33.0
    await pass_s(6)
    assert (str(held.exception()), refused(held)) == (IN_VAIN, 33.0)
    assert (str(loading.exception()), refused(loading)) == (IN_VAIN, 1.0), "a load is predicted by nobody, and short"
    assert isinstance(late.exception(), DeadlineExceeded)
    world.primary.finish()
    await rest()
    assert blocker.done()
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_who_comes_while_weights_are_verified_is_held_in_vain_too():
    world = World()
    world.batcher.open = False
    world.primary.warms(DOUBLE, batch=1)
    early = await world.ask(DOUBLE, [1], wait_s=6)
    await pass_s(6)
    assert (str(early.exception()), refused(early)) == (IN_VAIN, 1.0)


@manual_clock
async def test_lanes_and_forecast_are_asked_once_for_all_of_a_shape_until_something_changes():
    world, told = foretold(double=5.0)
    world.primary.plans(OTHER, {"batch": 4})
    for _ in range(3):
        await world.ask(DOUBLE, [1, 2], wait_s=30)
        await world.ask(OTHER, [1, 2], wait_s=30)
    await world.ask(DOUBLE, [1, 2, 3], wait_s=30)
    assert (told.asked, world.primary.wanted) == ([{"batch": 1}], [(OTHER, {"batch": 2})])
    for tenths in (1, 2):
        await pass_s(0.1)
        await world.ask(DOUBLE, [1], wait_s=30)
        assert len(told.asked) == 1 + tenths, "a forecast is good for a tenth of a second"
    world.batcher.changed()
    assert (len(told.asked), len(world.primary.wanted)) == (4, 2)
    assert world.batcher.rows_waiting == 17


async def step(world, lane, served, values, **sizes):
    """The step of a request that a lane runs at once."""
    task = await world.ask(served, values, **sizes)
    while lane.batch:
        lane.finish()
    await rest()
    return task.result().step


@manual_clock
async def test_a_bucket_is_exact_unless_a_smaller_one_that_covers_the_batch_is_planned_and_not_warm():
    world = World()
    world.primary.warms(DOUBLE, batch=8)
    assert await step(world, world.primary, DOUBLE, [1]) == Step.EXACT
    world.primary.plans(DOUBLE, {"batch": 2}, {"batch": 16})
    world.batcher.changed()
    assert await step(world, world.primary, DOUBLE, [1]) == Step.LARGER
    assert await step(world, world.primary, DOUBLE, [1, 2, 3]) == Step.EXACT, "2 rows would not have been enough"
    world.primary.warms(DOUBLE, batch=2)
    assert await step(world, world.primary, DOUBLE, [1]) == Step.EXACT


@manual_clock
async def test_a_bucket_that_is_larger_in_one_dimension_and_smaller_in_another_is_no_reason():
    world = World()
    world.primary.warms(ROWS, batch=2, seq=16)
    world.primary.plans(ROWS, {"batch": 4, "seq": 4})
    assert await step(world, world.primary, ROWS, [[1]], seq=1) == Step.EXACT
    world.primary.plans(ROWS, {"batch": 2, "seq": 4})
    world.batcher.changed()
    assert await step(world, world.primary, ROWS, [[1]], seq=1) == Step.LARGER


@manual_clock
async def test_what_the_lane_has_not_been_told_of_yet_counts_as_planned():
    world, told = foretold()
    world.primary.warms(DOUBLE, batch=8)
    told.buckets = [{"batch": 4}]
    world.batcher.changed()
    assert await step(world, world.primary, DOUBLE, [1]) == Step.LARGER
    told.buckets = []
    world.batcher.changed()
    assert await step(world, world.primary, DOUBLE, [1]) == Step.EXACT


@manual_clock
async def test_what_runs_on_another_lane_than_the_primary_one_says_so_whatever_its_bucket():
    world = World()
    world.cpu.warms(DOUBLE, batch=8)
    assert await step(world, world.cpu, DOUBLE, [1]) == Step.CPU
    world.primary.warms(DOUBLE, batch=8)
    assert await step(world, world.primary, DOUBLE, [1]) == Step.EXACT
    world.primary.die()
    assert await step(world, world.cpu, DOUBLE, [1]) == Step.CPU


@manual_clock
async def test_rows_that_fall_apart_where_fewer_run_together_were_split():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    blocker, wide = await world.ask(DOUBLE, [0]), await world.ask(DOUBLE, [1, 2, 3, 4])
    world.primary.warm.clear()
    world.primary.warms(DOUBLE, batch=2)
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert blocker.result().step is Step.EXACT
    assert (wide.result().step, wide.result().outputs[0].tolist()) == (Step.SPLIT, [2, 4, 6, 8])
