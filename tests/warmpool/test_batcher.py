"""Who runs when, where, with whom, and that everybody gets one answer."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warmpool.fake_lane import FakeLane, World, manual_clock, pass_s, rest
from tests.warmpool.served import BATCH, doubling, method, tensor
from warmpool.batcher import RUNS_MAX
from warmpool.batches import Batch
from warmpool.errors import DeadlineExceeded, LaneFailed, NotWarm, Overloaded
from warmpool.scheduling.work import Policy
from warmpool.selection import covers

DOUBLE = doubling()
OTHER = doubling("other")
ROWS = method([tensor("x", "int32", "batch", "seq")], [tensor("y", "int32", "batch", "seq")], name="rows")
TOTAL = method([tensor("x", "int32", "batch")], [tensor("y", "int32")], name="total")
ALONE = method([tensor("x", "int32", "seq")], [tensor("y", "int32", "seq")], name="alone")


def doubled(task):
    assert task.done()
    return task.result().outputs[0].tolist()


def failure(task):
    assert task.done()
    error = task.exception()
    assert error is not None
    return type(error), str(error)


@manual_clock
async def test_an_idle_lane_starts_at_once():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1, 2])
    assert world.primary.rows == [[[1, 2]]]
    assert world.batcher.rows_waiting == 0
    world.primary.finish()
    await rest()
    assert doubled(task) == [2, 4]


@manual_clock
async def test_requests_that_wait_together_leave_together_in_their_order():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    tasks = [await world.ask(DOUBLE, values) for values in ([1], [2, 3], [4], [5, 6, 7])]
    world.primary.finish()
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert world.primary.rows == [[[1]], [[2, 3], [4]], [[5, 6, 7]]]
    assert [doubled(task) for task in tasks] == [[2], [4, 6], [8], [10, 12, 14]]


@manual_clock
async def test_an_answer_says_what_happened_and_outlives_the_next_batch():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    first = await world.ask(DOUBLE, [1])
    second, third = await world.ask(DOUBLE, [2]), await world.ask(DOUBLE, [3, 4])
    world.primary.finish()
    world.primary.finish()
    world.primary.warms(DOUBLE, batch=8)
    await world.ask(DOUBLE, [50])
    assert doubled(first) == [2]
    result = second.result()
    assert (result.lane, result.bucket, result.batch_rows, result.padding, result.cold) == (
        "primary",
        "batch=4",
        3,
        0.25,
        False,
    )
    assert (result.arrived_ns, result.run_start_ns, result.run_end_ns) == (1, 1, 2)
    assert result.formed_ns <= result.sent_ns <= result.received_ns
    assert doubled(third) == [6, 8]
    assert world.finished == [(batch, "primary") for batch in world.primary.batches[:2]]


@manual_clock
async def test_rows_that_fill_their_bucket_lie_ready_before_the_lane_is_free_and_others_wait_for_company():
    world = World()
    world.primary.stages = True
    world.primary.warms(DOUBLE, cost_us=10.0, batch=1).warms(DOUBLE, cost_us=12.0, batch=4)
    running, full, few = [await world.ask(DOUBLE, [number] * rows) for number, rows in enumerate((1, 4, 1))]
    assert world.primary.rows == [[[0]], [[1] * 4]]
    assert world.batcher.rows_waiting == 1
    world.primary.finish()
    await rest()
    assert (doubled(running), full.done()) == ([0], False)
    more, later = await world.ask(DOUBLE, [3] * 3), await world.ask(DOUBLE, [4] * 4)
    assert world.primary.rows[2:] == [], "the one whose turn it is is not full, and nobody overtakes it"
    world.primary.finish()
    await rest()
    assert doubled(full) == [2] * 4
    assert world.primary.rows[2:] == [[[2], [3] * 3], [[4] * 4]]
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert [doubled(task) for task in (few, more, later)] == [[4], [6] * 3, [8] * 4]


@manual_clock
async def test_a_staged_batch_of_a_lane_that_dies_runs_elsewhere_and_was_no_try():
    world = World()
    world.primary.stages = True
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(DOUBLE, batch=4)
    tasks = [await world.ask(DOUBLE, [number] * 4) for number in range(3)]
    assert [batch.rows for batch in world.primary.given] == [4, 4]
    world.primary.die()
    for _ in tasks:
        world.cpu.finish()
    await rest()
    assert [doubled(task) for task in tasks] == [[0] * 4, [2] * 4, [4] * 4]
    assert [world.parts[task].runs for task in tasks] == [2, 1, 1]


@manual_clock
async def test_what_is_staged_again_and_again_is_predicted_from_when_it_really_begins():
    """Each run is over long before its bound; if that was never noticed, the lane would seem busy for ever."""
    world = World()
    world.primary.stages = True
    world.primary.costs.spread = 100.0
    world.primary.warms(DOUBLE, cost_us=1000.0, batch=4)
    tasks = [await world.ask(DOUBLE, [number] * 4) for number in range(3)]
    for number in range(3, 50):
        await pass_s(0.001)
        world.primary.finish()
        tasks.append(await world.ask(DOUBLE, [number] * 4, wait_s=0.5))
        assert not tasks[-1].done(), "100 ms each for three before it, and for itself"
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert [doubled(task) for task in tasks] == [[2 * number] * 4 for number in range(50)]


@manual_clock
async def test_a_caller_who_leaves_the_queue_frees_its_rows_and_is_not_run():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    running = await world.ask(DOUBLE, [1])
    leaving, staying = await world.ask(DOUBLE, [2, 2]), await world.ask(DOUBLE, [3])
    assert world.batcher.rows_waiting == 3
    leaving.cancel()
    await rest()
    assert world.batcher.rows_waiting == 1
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert world.primary.rows == [[[1]], [[3]]]
    assert (doubled(running), doubled(staying), leaving.cancelled()) == ([2], [6], True)


@manual_clock
async def test_a_caller_who_leaves_while_its_batch_runs_does_not_disturb_its_neighbours():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    blocker = await world.ask(DOUBLE, [0])
    tasks = [await world.ask(DOUBLE, [number]) for number in (1, 2, 3)]
    world.primary.finish()
    tasks[1].cancel()
    await rest()
    world.primary.finish()
    await rest()
    assert (doubled(blocker), doubled(tasks[0]), doubled(tasks[2])) == ([0], [2], [6])
    assert tasks[1].cancelled()
    assert world.primary.idle


@manual_clock
async def test_a_request_whose_time_runs_out_in_the_queue_leaves_it():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [1])
    late, patient = await world.ask(DOUBLE, [2], wait_s=5), await world.ask(DOUBLE, [3], wait_s=6)
    await pass_s(4.9)
    assert not late.done()
    await pass_s(0.1)
    assert failure(late) == (DeadlineExceeded, "the request's time ran out before it was answered")
    assert world.batcher.rows_waiting == 1
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert world.primary.rows == [[[1]], [[3]]]
    assert doubled(patient) == [6]


@manual_clock
async def test_a_request_whose_time_runs_out_while_it_runs_does_not_disturb_its_neighbours():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [1])
    late, patient = await world.ask(DOUBLE, [2], wait_s=5), await world.ask(DOUBLE, [3], wait_s=50)
    world.primary.finish()
    await pass_s(5)
    assert failure(late)[0] is DeadlineExceeded
    world.primary.finish()
    await rest()
    assert world.primary.rows[1] == [[2], [3]]
    assert doubled(patient) == [6]


@manual_clock
async def test_a_request_without_time_is_answered_so():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    await pass_s(10)
    task = await world.ask(DOUBLE, [1], wait_s=-1)
    assert failure(task)[0] is DeadlineExceeded
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_more_rows_than_may_wait_are_refused_and_those_that_wait_are_not_touched():
    world = World(rows_max=4)
    world.primary.warms(DOUBLE, batch=4)
    running, waiting = await world.ask(DOUBLE, [1, 1, 1, 1]), await world.ask(DOUBLE, [2, 2, 2])
    refused = await world.ask(DOUBLE, [3, 3])
    assert failure(refused) == (Overloaded, "3 rows wait, 4 may")
    fits = await world.ask(DOUBLE, [4])
    assert world.batcher.rows_waiting == 4
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert [doubled(task) for task in (running, waiting, fits)] == [[2] * 4, [4] * 3, [8]]
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_a_batch_that_fails_is_run_once_more_and_then_fails_with_the_reason():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    assert RUNS_MAX == 2
    world.primary.fail()
    await rest()
    assert not task.done()
    assert world.primary.rows == [[[1]], [[1]]]
    world.primary.fail()
    await rest()
    assert failure(task) == (LaneFailed, "it was run 2 times and failed; the log says why")
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_the_parts_of_a_batch_that_fails_are_run_again_each_alone_before_what_came_later():
    world = World()
    world.primary.warms(DOUBLE, batch=2)
    tasks = [await world.ask(DOUBLE, [number]) for number in range(5)]
    world.primary.finish()
    world.primary.fail()
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert world.primary.rows == [[[0]], [[1], [2]], [[1]], [[2]], [[3], [4]]]
    assert [doubled(task) for task in tasks] == [[0], [2], [4], [6], [8]]


@manual_clock
async def test_what_ran_in_a_lane_that_died_is_run_by_the_other_one():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(DOUBLE, batch=4)
    tasks = [await world.ask(DOUBLE, [number]) for number in (1, 2)]
    world.primary.die()
    world.cpu.finish()
    world.cpu.finish()
    assert world.cpu.rows == [[[1]], [[2]]]
    await rest()
    assert [doubled(task) for task in tasks] == [[2], [4]]
    assert [task.result().lane for task in tasks] == ["cpu", "cpu"]


@manual_clock
async def test_what_failed_on_one_lane_waits_for_another_though_that_one_is_idle():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(DOUBLE, batch=4).warms(OTHER, batch=4)
    busy = await world.ask(OTHER, [2])
    task = await world.ask(DOUBLE, [1])
    world.primary.fail()
    world.primary.warms(DOUBLE, batch=8)  # which decides anew where all that waits is to wait
    assert world.primary.idle
    world.cpu.finish()
    world.cpu.finish()
    await rest()
    assert (doubled(task), task.result().lane) == ([2], "cpu")
    assert doubled(busy) == [4]


@manual_clock
async def test_what_failed_on_the_only_lane_that_has_something_for_it_is_run_there_again():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(OTHER, batch=4)
    task = await world.ask(DOUBLE, [1])
    world.primary.fail()
    world.primary.finish()
    await rest()
    assert (doubled(task), task.result().lane) == ([2], "primary")


@manual_clock
async def test_what_had_no_room_is_tried_again_on_the_same_lane():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    batch, world.primary.batch = world.primary.batch, None
    world.batcher.failed(batch, out_of_memory=True)
    world.primary.finish()
    await rest()
    assert (doubled(task), task.result().lane) == ([2], "primary")


@pytest.mark.parametrize("jump_s", [86400, -86400])
def test_what_a_batch_took_does_not_depend_on_a_clock_that_is_set_meanwhile(jump_s, monkeypatch):
    @manual_clock
    async def story():
        world = World()
        world.primary.warms(DOUBLE, batch=4)
        task = await world.ask(DOUBLE, [1])
        now_ns = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now_ns + jump_s * 10**9)
        world.primary.finish()
        await rest()
        assert doubled(task) == [2]
        ((batch, _),) = world.finished
        assert 0 < batch.took_us < 86400e6 / 2

    story()


@manual_clock
async def test_a_lane_that_dies_twice_under_a_request_fails_it():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    world.primary.die()
    world.primary.alive = True
    world.primary.warms(DOUBLE, batch=4)
    assert len(world.primary.batches) == 2
    world.primary.die()
    await rest()
    assert failure(task) == (LaneFailed, "it was run 2 times and failed; the log says why")


@manual_clock
async def test_a_request_that_fails_its_lane_takes_its_neighbours_along_once_only():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    _, poison, neighbour = [await world.ask(DOUBLE, [number]) for number in (0, 13, 2)]
    world.primary.finish()
    assert world.primary.rows[-1] == [[13], [2]]
    world.primary.fail()
    world.primary.fail()
    world.primary.finish()
    await rest()
    assert failure(poison) == (LaneFailed, "it was run 2 times and failed; the log says why")
    assert doubled(neighbour) == [4]


@manual_clock
async def test_a_lane_that_died_before_it_came_to_a_batch_does_not_count_against_it():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    world.primary.die()
    assert world.cpu.batch is not None
    world.cpu.batch.begun = False
    world.cpu.die()
    assert not task.done()
    world.primary.alive = True
    world.primary.warms(DOUBLE, batch=4)
    world.primary.finish()
    await rest()
    assert doubled(task) == [2]


@manual_clock
async def test_what_fails_after_the_close_is_settled():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    world.batcher.close()
    world.primary.die()
    await rest()
    assert failure(task) == (NotWarm, "the instance is shutting down")


@manual_clock
async def test_a_caller_who_left_is_not_run_again():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    blocker, leaving, staying = [await world.ask(DOUBLE, [number]) for number in (0, 1, 2)]
    world.primary.finish()
    leaving.cancel()
    await rest()
    world.primary.fail()
    assert world.primary.rows[-1] == [[2]]
    world.primary.finish()
    await rest()
    assert (doubled(blocker), doubled(staying)) == ([0], [4])
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_the_method_that_has_waited_longest_is_next():
    world = World()
    for served in (DOUBLE, OTHER):
        world.primary.warms(served, batch=4)
    await world.ask(DOUBLE, [0])
    order = [(OTHER, 1), (DOUBLE, 2), (OTHER, 3), (DOUBLE, 4)]
    tasks = [await world.ask(served, [number]) for served, number in order]
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert world.primary.rows == [[[0]], [[1], [3]], [[2], [4]]]
    assert [doubled(task) for task in tasks] == [[2], [4], [6], [8]]


@manual_clock
async def test_the_cpu_waits_where_the_primary_has_something_warm_even_if_that_is_busy():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.cpu.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [1])
    await world.ask(DOUBLE, [2])
    assert world.primary.rows == [[[1]]]
    assert world.cpu.rows == []


@manual_clock
async def test_the_cpu_runs_what_the_primary_has_nothing_warm_for():
    world = World()
    world.primary.warms(DOUBLE, batch=2)
    world.cpu.warms(DOUBLE, batch=4)
    wide, narrow = await world.ask(DOUBLE, [1, 2, 3]), await world.ask(DOUBLE, [4])
    assert (world.cpu.rows, world.primary.rows) == ([[[1, 2, 3]]], [[[4]]])
    world.cpu.finish()
    world.primary.finish()
    await rest()
    assert (doubled(wide), wide.result().lane) == ([2, 4, 6], "cpu")
    assert (doubled(narrow), narrow.result().lane) == ([8], "primary")


@manual_clock
async def test_a_batch_on_the_cpu_takes_nobody_along_whom_the_primary_would_run():
    world = World()
    world.primary.warms(DOUBLE, batch=2)
    world.cpu.warms(DOUBLE, batch=8)
    await world.ask(DOUBLE, [0])
    await world.ask(DOUBLE, [1, 1, 1])
    await world.ask(DOUBLE, [2, 2, 2])
    await world.ask(DOUBLE, [3])
    world.cpu.finish()
    world.primary.finish()
    assert world.cpu.rows == [[[1, 1, 1]], [[2, 2, 2]]]
    assert world.primary.rows == [[[0]], [[3]]]


@manual_clock
async def test_what_nothing_warm_covers_yet_waits_without_holding_up_others_and_runs_once_it_can():
    world = World()
    world.primary.plans(DOUBLE, {"batch": 8}).warms(DOUBLE, batch=2)
    large = [await world.ask(DOUBLE, [number] * 5) for number in range(65)]
    small = await world.ask(DOUBLE, [7])
    assert world.primary.rows == [[[7]]]
    world.primary.finish()
    await rest()
    assert (doubled(small), small.result().cold) == ([14], False)
    world.primary.warms(DOUBLE, batch=8)
    assert world.primary.rows[1] == [[0] * 5]
    world.primary.finish()
    await rest()
    assert (doubled(large[0]), large[0].result().cold) == ([0] * 5, True)


@manual_clock
async def test_what_waits_for_a_busy_cpu_does_not_hold_up_the_primary():
    world = World()
    world.primary.warms(DOUBLE, batch=2)
    world.cpu.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [1, 1, 1])
    await world.ask(DOUBLE, [2, 2, 2])
    task = await world.ask(DOUBLE, [3])
    assert world.primary.rows == [[[3]]]
    world.primary.finish()
    await rest()
    assert doubled(task) == [6]


@manual_clock
async def test_the_primary_takes_over_what_waits_for_the_cpu_once_it_is_warm_and_the_order_stays():
    world = World()
    world.primary.plans(DOUBLE, {"batch": 4}).warms(DOUBLE, batch=2)
    world.cpu.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [0])
    for number in (1, 2, 3):
        await world.ask(DOUBLE, [number] * 3)
    await world.ask(DOUBLE, [4])
    world.primary.warms(DOUBLE, batch=4)
    world.primary.finish()
    assert world.cpu.rows == [[[1, 1, 1]]]
    assert world.primary.rows == [[[0]], [[2, 2, 2]]]
    world.primary.finish()
    assert world.primary.rows[2] == [[3, 3, 3], [4]]


@manual_clock
async def test_what_no_lane_can_come_to_cover_is_refused_at_once():
    world = World()
    world.primary.warms(ROWS, batch=2, seq=4)
    task = await world.ask(ROWS, [[1] * 5], seq=5)
    kind, message = failure(task)
    assert (kind, message) == (NotWarm, "tiny:rows has no executable on this machine that covers batch=1, seq=5")
    error = task.exception()
    assert isinstance(error, NotWarm)
    assert error.retry_after_s == 10.0
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_what_a_lane_that_has_said_nothing_yet_may_cover_waits():
    world = World()
    world.primary.known = False
    task = await world.ask(DOUBLE, [1])
    assert not task.done()
    world.primary.known = True
    world.primary.warms(DOUBLE, batch=2).finish()
    await rest()
    assert doubled(task) == [2]
    assert task.result().cold


@manual_clock
async def test_a_change_refuses_what_has_become_hopeless_and_nothing_else():
    world = World()
    world.primary.plans(ROWS, {"batch": 8, "seq": 16}, {"batch": 8, "seq": 8}, {"batch": 2, "seq": 8})
    hopeless = await world.ask(ROWS, [[1] * 9], seq=9)
    hopeful = await world.ask(ROWS, [[number] * 8 for number in range(3)], seq=8)
    del world.primary.plan[ROWS][:2]
    world.batcher.changed()
    await rest()
    assert failure(hopeless)[0] is NotWarm
    assert not hopeful.done()
    assert world.batcher.rows_waiting == 3
    world.primary.warms(ROWS, batch=2, seq=8)
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert doubled(hopeful) == [[0] * 8, [2] * 8, [4] * 8], "what is left runs fewer rows at a time"


@manual_clock
async def test_what_ran_in_a_lane_that_died_for_good_is_refused():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    running, waiting = await world.ask(DOUBLE, [1]), await world.ask(DOUBLE, [2])
    world.primary.die(stays_unknown=False)
    await rest()
    assert failure(running)[0] is failure(waiting)[0] is NotWarm
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_nothing_runs_before_the_weights_are_known_to_be_whole():
    world = World()
    world.batcher.open = False
    world.primary.warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    assert world.primary.batches == []
    world.batcher.open = True
    world.batcher.changed()
    world.primary.finish()
    await rest()
    assert doubled(task) == [2]


@manual_clock
async def test_what_waits_for_a_method_that_is_withdrawn_is_refused_and_the_rest_is_not():
    world = World()
    world.batcher.open = False
    world.primary.warms(DOUBLE, batch=4).warms(OTHER, batch=4)
    spoilt, whole = await world.ask(DOUBLE, [1]), await world.ask(OTHER, [2])
    world.batcher.withdraw([DOUBLE], "its weights are damaged")
    world.batcher.open = True
    world.batcher.changed()
    assert world.primary.rows == [[[2]]]
    world.primary.finish()
    await rest()
    assert failure(spoilt) == (NotWarm, "its weights are damaged")
    assert doubled(whole) == [4]


@manual_clock
async def test_what_a_method_ran_last_is_noted_before_it_is_forgotten_and_does_not_bring_it_back():
    world = World()
    world.primary.warms(DOUBLE, batch=1)
    told: list[Batch] = []
    world.batcher._finished = lambda batch, _: told.append(batch)
    for forgets in (False, True):
        task = await world.ask(DOUBLE, [1])
        world.primary.finish()
        if forgets:  # in the very turn
            world.batcher.forget(DOUBLE)
        await rest()
        assert doubled(task) == [2]
        assert (len(told), len(world.primary.costs.observed)) == ((2, 0) if forgets else (1, 1))


@manual_clock
async def test_closing_answers_everybody_who_waits_and_lets_run_what_runs():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    world.primary.plans(OTHER, {"batch": 4})
    running, waiting, other = (
        await world.ask(DOUBLE, [1]),
        await world.ask(DOUBLE, [2]),
        await world.ask(OTHER, [3]),
    )
    world.batcher.close()
    await rest()
    for task in (waiting, other):
        assert failure(task) == (NotWarm, "the instance is shutting down")
    world.primary.finish()
    await rest()
    assert doubled(running) == [2]
    assert (len(world.primary.batches), world.batcher.rows_waiting) == (1, 0)


@manual_clock
async def test_a_lane_that_is_done_before_its_bound_is_free():
    world = World()
    world.primary.costs.spread = 50.0
    world.primary.warms(DOUBLE, cost_us=10_000, batch=1)
    for number in range(3):  # 300 ms are left, and the bound of what ran before would end in 500
        task = await world.ask(DOUBLE, [number], wait_s=0.300)
        assert not task.done()
        await pass_s(0.010)
        world.primary.finish()
        await rest()
        assert doubled(task) == [2 * number]


@manual_clock
async def test_who_waits_for_company_when_the_drain_begins_runs_at_once():
    world = World(policy=Policy(gather_s=5.0))
    world.primary.warms(DOUBLE, batch=1).warms(DOUBLE, batch=4)
    task = await world.ask(DOUBLE, [1])
    assert world.primary.rows == []
    world.batcher.drain()
    assert world.primary.rows == [[[1]]]
    await world.ask(DOUBLE, [2])
    world.primary.finish()
    assert world.primary.rows == [[[1]], [[2]]]
    await rest()
    assert doubled(task) == [2]


@manual_clock
async def test_a_batch_takes_all_along_that_the_largest_bucket_holds():
    world = World()
    world.primary.warms(DOUBLE, batch=100)
    await world.ask(DOUBLE, [0])
    tasks = [await world.ask(DOUBLE, [number]) for number in range(103)]
    world.primary.finish()
    assert len(world.primary.batches[1].parts) == 100
    world.primary.finish()
    world.primary.finish()
    await rest()
    assert [doubled(task) for task in tasks] == [[2 * number] for number in range(103)]


@manual_clock
async def test_lengths_share_a_batch_only_where_that_is_predicted_to_be_no_dearer():
    world = World()
    world.primary.warms(ROWS, cost_us=10, batch=1, seq=4).warms(ROWS, cost_us=100, batch=1, seq=16)
    world.primary.warms(ROWS, cost_us=15, batch=2, seq=4).warms(ROWS, cost_us=300, batch=2, seq=16)
    await world.ask(ROWS, [[0]], seq=1)
    short = [await world.ask(ROWS, [[number] * 3], seq=3) for number in (1, 2)]
    long = await world.ask(ROWS, [[5] * 9], seq=9)
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert world.primary.rows == [[[[0]]], [[[1, 1, 1]], [[2, 2, 2]]], [[[5] * 9]]]
    assert [doubled(task) for task in (*short, long)] == [[[2] * 3], [[4] * 3], [[10] * 9]]


@manual_clock
async def test_requests_without_a_batch_dimension_run_one_by_one():
    world = World()
    world.primary.warms(ALONE, seq=4)
    tasks = [await world.ask(ALONE, [number] * 2) for number in (1, 2, 3)]
    for _ in range(3):
        world.primary.finish()
    await rest()
    assert world.primary.rows == [[[1, 1]], [[2, 2]], [[3, 3]]]
    assert [doubled(task) for task in tasks] == [[2, 2], [4, 4], [6, 6]]


@manual_clock
async def test_requests_whose_rows_cannot_be_told_apart_in_the_answer_run_one_by_one():
    world = World()
    assert not TOTAL.mergeable
    world.primary.warms(TOTAL, batch=4)
    for values in ([1], [2, 2], [3]):
        await world.ask(TOTAL, values)
    for _ in range(2):
        world.primary.finish()
    assert world.primary.rows == [[[1]], [[2, 2]], [[3]]]


@manual_clock
async def test_a_caller_who_leaves_at_the_very_moment_a_lane_becomes_idle_is_not_run():
    world = World()
    world.primary.warms(DOUBLE, batch=4)
    await world.ask(DOUBLE, [0])
    tasks = [await world.ask(DOUBLE, [number]) for number in (1, 2, 3)]
    tasks[1].cancel()
    world.primary.finish()
    assert world.primary.rows[1] == [[1], [3]]
    await rest()
    assert world.batcher.rows_waiting == 0


@manual_clock
async def test_rows_are_split_by_what_is_warm_and_by_the_plan_while_nothing_is():
    world = World()
    assert world.batcher.chunk_rows(DOUBLE, {"batch": 50}) == BATCH.sizes[-1]
    world.cpu.warms(DOUBLE, batch=2)
    assert world.batcher.chunk_rows(DOUBLE, {"batch": 50}) == 2
    world.primary.warms(DOUBLE, batch=1).warms(DOUBLE, batch=4)
    assert world.batcher.chunk_rows(DOUBLE, {"batch": 50}) == 4
    world.primary.warms(ROWS, batch=8, seq=4).warms(ROWS, batch=2, seq=16)
    assert world.batcher.chunk_rows(ROWS, {"batch": 50, "seq": 4}) == 8
    assert world.batcher.chunk_rows(ROWS, {"batch": 50, "seq": 5}) == 2
    assert world.batcher.chunk_rows(ALONE, {"seq": 4}) == 1


@manual_clock
async def test_it_shows_how_much_waits():
    world = World(rows_max=9)
    world.primary.plans(DOUBLE, {"batch": 4})
    await world.ask(DOUBLE, [1, 2])
    assert repr(world.batcher) == "<Batcher 2 of 9 rows waiting, [<FakeLane primary>, <FakeLane cpu>]>"


def pieces_of(one):
    """What runs in the place of a part: itself, if it did not fall apart."""
    return [piece for part in one.pieces for piece in pieces_of(part)] or [one]


LANES = st.sampled_from(["primary", "cpu"])
ASKS = st.tuples(st.just("ask"), st.sampled_from([DOUBLE, OTHER]), st.integers(1, 6), st.sampled_from([5.0, 1e6]))
STEPS = st.one_of(
    *[ASKS] * 4,
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("pass"), st.floats(0, 4)),
    st.tuples(st.just("finish"), LANES),
    st.tuples(st.just("fail"), LANES),
    st.tuples(st.just("die"), LANES),
    st.tuples(st.just("warm"), LANES, st.sampled_from([DOUBLE, OTHER]), st.sampled_from([1, 2, 4, 8])),
)
ROWS_MAX = 9


class Schedule:
    """Plays steps, and looks after each of them whether what must always hold does."""

    def __init__(self, stages: bool) -> None:
        self.world = World(ROWS_MAX)
        self.world.primary.stages = self.world.cpu.stages = stages
        self.tasks: list[asyncio.Task] = []
        self.cancelled: set[asyncio.Task] = set()
        self._seen = {"primary": 0, "cpu": 0}
        self._started: dict[tuple, int] = {}
        for lane in (self.world.primary, self.world.cpu):
            self._plan(lane)
        self.world.primary.warms(DOUBLE, batch=4)

    async def play(self, step) -> None:
        kind, *rest_of_it = step
        await getattr(self, f"_{kind}")(*rest_of_it)
        await rest()
        self._check()

    async def end(self) -> None:
        """Let run what runs, and close: after that nobody may still wait."""
        for lane in (self.world.primary, self.world.cpu):
            if lane.batch:
                lane.finish()
        self.world.batcher.close()
        for lane in (self.world.primary, self.world.cpu):
            while lane.batch:
                lane.finish()
        await rest()
        assert self.world.batcher.rows_waiting == 0
        assert all(task.done() for task in self.tasks)
        for task in self.tasks:
            self._check_answer(task)

    async def _ask(self, served, rows, wait_s) -> None:
        too_many = self.world.batcher.rows_waiting + rows > ROWS_MAX
        task = await self.world.ask(served, [len(self.tasks)] * rows, wait_s=wait_s)
        assert too_many == (task.done() and isinstance(task.exception(), Overloaded))
        self.tasks.append(task)

    async def _cancel(self, number) -> None:
        if number < len(self.tasks) and self.tasks[number].cancel():
            self.cancelled.add(self.tasks[number])

    async def _pass(self, seconds) -> None:
        await pass_s(seconds)

    async def _finish(self, name) -> None:
        if self._lane(name).batch:
            self._lane(name).finish()

    async def _fail(self, name) -> None:
        if self._lane(name).batch:
            self._lane(name).fail()

    async def _die(self, name) -> None:
        lane = self._lane(name)
        lane.die(stays_unknown=False) if lane.alive else self._plan(lane)

    async def _warm(self, name, served, batch) -> None:
        if self._lane(name).alive:
            self._lane(name).warms(served, batch=batch)

    def _lane(self, name) -> FakeLane:
        return getattr(self.world, name)

    def _plan(self, lane) -> None:
        lane.alive = lane.known = True
        lane.plans(DOUBLE, {"batch": 8}).plans(OTHER, {"batch": 4})
        self.world.batcher.changed()

    def _check(self) -> None:
        world = self.world
        waiting = world.batcher.waiting()
        running = [one for lane in (world.primary, world.cpu) for batch in lane.given for one in batch.parts]
        assert world.batcher.rows_waiting == sum(one.rows for one in waiting)
        assert not {*map(id, waiting)} & {*map(id, running)}
        assert len({*map(id, running)}) == len(running)
        for task, one in world.parts.items():
            assert task.done() or all(
                piece.answer.done() or piece in waiting or piece in running for piece in pieces_of(one)
            )
        for lane in (world.primary, world.cpu):  # nobody waits for a lane that has nothing to do
            assert not (lane.idle and any(self._preferred(one) is lane for one in waiting))
        for name, seen in self._seen.items():
            for batch in self._lane(name).batches[seen:]:
                self._check_batch(name, batch)
            self._seen[name] = len(self._lane(name).batches)

    def _check_batch(self, name, batch) -> None:
        assert batch.rows <= batch.executable.bucket["batch"]
        for one in batch.parts:
            assert 1 <= one.runs <= RUNS_MAX
            assert self._preferred(one) is self._lane(name)
            if one.runs == 1 and one in self.world.parts.values():  # of equal ones what came first starts first
                key = (one.method, one.rows)
                assert self._started.get(key, -1) < one.arrived_ns
                self._started[key] = one.arrived_ns

    def _preferred(self, one) -> FakeLane | None:
        lanes = (self.world.primary, self.world.cpu)
        return next(
            (lane for lane in lanes if any(covers(held.bucket, one.need) for held in lane.warm[one.method])), None
        )

    def _check_answer(self, task) -> None:
        if task.cancelled():
            assert task in self.cancelled
        elif error := task.exception():
            assert isinstance(error, Overloaded | NotWarm | DeadlineExceeded | LaneFailed)
        else:
            assert doubled(task) == (self.world.parts[task].inputs[0] * 2).tolist()


@settings(max_examples=300)
@given(st.lists(STEPS, min_size=5, max_size=60), st.booleans())
def test_everybody_gets_one_answer_whatever_happens_in_which_order(steps, stages):
    """An answer given twice would raise: a future takes one."""

    @manual_clock
    async def play():
        schedule = Schedule(stages)
        for step in steps:
            await schedule.play(step)
        await schedule.end()

    play()
