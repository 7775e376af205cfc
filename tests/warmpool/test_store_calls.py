"""Calls of a store have a deadline, and those that miss it do no harm."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cache.errors import NotStored, StoreUnavailable, told
from warmpool import store_calls
from warmpool.store_calls import LEFT_MAX, StoreCalls

WAIT_S_MAX = 60.0


class Hanging:
    """A call that returns, or raises, when the test says so; `begun` says how often it was made."""

    def __init__(self, error=None):
        self._begun = []
        self.goes_on = threading.Event()
        self.error = error

    @property
    def begun(self):
        return len(self._begun)

    def __call__(self):
        self._begun.append(True)
        assert self.goes_on.wait(WAIT_S_MAX)
        if self.error:
            raise self.error
        return "late"


def run(story):
    async def main():
        async with asyncio.timeout(WAIT_S_MAX):
            await story(StoreCalls())

    asyncio.run(main())


async def late(calls, what, call):
    """Ask for what is not answered in time; whatever else is asked has plenty of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_calls, "CALL_S_MAX", 0.02)
        return await calls.ask(what, call)


async def until(condition):
    while not condition():  # noqa: ASYNC110  in a thread
        await asyncio.sleep(0.001)


async def ended(calls):
    await until(lambda: all(answer.done() for answer in calls._left.values()))


def test_an_answer_is_passed_on_and_trouble_lasts_until_there_is_one(caplog):
    def away():
        raise StoreUnavailable("the store is away")

    async def story(calls):
        assert await calls.ask("it", lambda: 7) == 7
        assert await calls.ask("it", away) is None
        assert await calls.ask("another", lambda: 8) == 8
        assert calls.troubles == {"it": told(StoreUnavailable("the store is away"))}
        assert await calls.ask("it", lambda: 7) == 7
        assert calls.troubles == {}

    run(story)
    assert caplog.text.count("store cannot be used now") == 1


@pytest.mark.parametrize("error", [NotStored("it"), TimeoutError(110, "a call of its own"), PermissionError(13, "no")])
def test_what_a_store_may_raise_is_trouble(error):
    def fail():
        raise error

    async def story(calls):
        assert await calls.ask("it", fail) is None
        assert calls.troubles == {"it": told(error)}

    run(story)


def test_a_late_call_is_trouble_and_not_made_again_until_it_has_ended_and_what_it_came_to_is_not_used():
    async def story(calls):
        hanging = Hanging()
        for _ in range(3):
            assert await late(calls, "it", hanging) is None
            assert "did not answer within 0.02 s" in calls.troubles["it"]
            await until(lambda: hanging.begun)
        assert hanging.begun == 1
        assert await calls.ask("another", lambda: 8) == 8
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("it", lambda: 9) == 9
        assert calls.troubles == {}

    run(story)


def test_no_more_calls_are_left_behind_than_may_be():
    async def story(calls):
        hanging = Hanging()
        for number in range(LEFT_MAX + 3):
            assert await late(calls, f"{number}", hanging) is None
        await until(lambda: hanging.begun >= LEFT_MAX)
        assert hanging.begun == LEFT_MAX
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("it", lambda: 7) == 7

    run(story)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OSError(5, "no")])
def test_a_late_call_that_fails_as_stores_may_is_forgotten(error):
    async def story(calls):
        hanging = Hanging(error)
        assert await late(calls, "it", hanging) is None
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("it", lambda: 7) == 7

    run(story)


def test_a_mistake_of_ours_is_trouble_too_and_the_log_says_where_it_was_made(caplog):
    def fail():
        raise RecursionError("a bug")

    async def story(calls):
        for _ in range(2):
            assert await calls.ask("it", fail) is None
            assert calls.troubles == {"it": "it failed (RecursionError); the log says where"}
        hanging = Hanging(RuntimeError("another bug"))
        assert await late(calls, "another", hanging) is None
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("something else", lambda: 7) == 7

    run(story)
    told_where = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in told_where] == ["a bug", "another bug"]
