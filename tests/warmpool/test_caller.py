"""A caller that leaves ends what is done for it, and nothing else: not the task, nor what others want of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.warmpool.fake_lane import manual_clock, pass_s, rest
from warmpool.caller import Caller
from warmpool.errors import Cancelled


async def waiting(caller: Caller, answer: asyncio.Future[str]) -> str:
    try:
        with caller:
            return await answer
    except Cancelled as error:
        await asyncio.sleep(0)  # the task goes on: it has a trace to record
        return str(error)


def begun(caller: Caller) -> tuple[asyncio.Task[str], asyncio.Future[str]]:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    return loop.create_task(waiting(caller, answer)), answer


@manual_clock
async def test_a_caller_that_stays_gets_its_answer_and_may_leave_then():
    caller = Caller()
    task, answer = begun(caller)
    await rest()
    answer.set_result("here")
    await rest()
    caller.leave()
    assert (await task, task.cancelling()) == ("here", 0)


@manual_clock
async def test_a_caller_that_leaves_ends_the_wait_and_its_task_goes_on():
    caller = Caller()
    task, answer = begun(caller)
    await rest()
    caller.leave()
    caller.leave()
    await rest()
    assert (await task, task.cancelling(), answer.cancelled()) == ("the caller went away", 0, True)


@manual_clock
async def test_a_caller_that_left_before_is_not_waited_for():
    caller = Caller()
    caller.leave()
    task, answer = begun(caller)
    await rest()
    assert (await task, answer.done()) == ("the caller went away", False)


@manual_clock
async def test_a_caller_that_leaves_in_the_very_turn_of_its_answer_is_gone():
    caller = Caller()
    task, answer = begun(caller)
    await rest()
    answer.set_result("late")
    caller.leave()
    await rest()
    assert (await task, task.cancelling()) == ("the caller went away", 0)


@manual_clock
async def test_whoever_cancels_the_task_as_well_is_obeyed():
    for first, second in (("leave", "cancel"), ("cancel", "leave")):
        caller = Caller()
        task, _ = begun(caller)
        await rest()
        for which in (first, second):
            caller.leave() if which == "leave" else task.cancel()
        await rest()
        assert task.cancelled(), "the end of the drain is not taken for the caller's leaving"


@manual_clock
async def test_a_time_that_runs_out_in_the_same_turn_disturbs_nothing():
    caller = Caller()

    async def timed() -> str:
        try:
            with caller:
                async with asyncio.timeout(1):
                    await asyncio.Event().wait()
        except (Cancelled, TimeoutError) as error:
            return type(error).__name__
        return ""

    task = asyncio.get_running_loop().create_task(timed())
    await rest()
    asyncio.get_running_loop().call_at(1, caller.leave)
    await pass_s(1)
    assert (await task, task.cancelling()) == ("Cancelled", 0)


@manual_clock
async def test_an_error_of_its_own_stays_what_it_is():
    caller = Caller()
    task, answer = begun(caller)
    await rest()
    answer.set_exception(ZeroDivisionError())
    await rest()
    with pytest.raises(ZeroDivisionError):
        await task
