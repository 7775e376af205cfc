"""Calls of a store have a deadline, and those that miss it do no harm."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cache.errors import NotStored, StoreUnavailable, told
from warmpool import store_calls
from warmpool.store_calls import LEFT_MAX, StoreCalls

WAIT_S_MAX = 20.0


class Hanging:
    """A call that returns, or raises, when the test says so; `begun` counts."""

    def __init__(self, error=None):
        self.begun = 0
        self.goes_on = threading.Event()
        self.error = error

    def __call__(self):
        self.begun += 1
        assert self.goes_on.wait(WAIT_S_MAX)
        if self.error:
            raise self.error
        return "late"


def run(story):
    async def main():
        async with asyncio.timeout(WAIT_S_MAX):
            await story(StoreCalls())

    asyncio.run(main())


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(store_calls, "CALL_S_MAX", 0.02)


async def ended(calls):
    while not all(answer.done() for answer in calls._left.values()):  # noqa: ASYNC110  in a thread
        await asyncio.sleep(0.001)


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


def test_a_late_call_is_trouble_and_not_made_again_until_it_has_ended_and_what_it_came_to_is_not_used(hasty):
    async def story(calls):
        hanging = Hanging()
        for _ in range(3):
            assert await calls.ask("it", hanging) is None
            assert "did not answer within 0.02 s" in calls.troubles["it"]
        assert hanging.begun == 1
        assert await calls.ask("another", lambda: 8) == 8
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("it", lambda: 9) == 9
        assert calls.troubles == {}

    run(story)


def test_no_more_calls_are_left_behind_than_may_be(hasty):
    async def story(calls):
        hanging = Hanging()
        for number in range(LEFT_MAX + 3):
            assert await calls.ask(f"{number}", hanging) is None
        assert hanging.begun == LEFT_MAX
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("it", lambda: 7) == 7

    run(story)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OSError(5, "no")])
def test_a_late_call_that_fails_as_stores_may_is_forgotten(hasty, error):
    async def story(calls):
        hanging = Hanging(error)
        await calls.ask("it", hanging)
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("it", lambda: 7) == 7

    run(story)


def test_a_mistake_of_ours_is_trouble_too_and_the_log_says_where_it_was_made(hasty, caplog):
    def fail():
        raise RecursionError("a bug")

    async def story(calls):
        for _ in range(2):
            assert await calls.ask("it", fail) is None
            assert calls.troubles == {"it": "it failed (RecursionError); the log says where"}
        hanging = Hanging(RuntimeError("another bug"))
        assert await calls.ask("another", hanging) is None
        hanging.goes_on.set()
        await ended(calls)
        assert await calls.ask("something else", lambda: 7) == 7

    run(story)
    told_where = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in told_where] == ["a bug", "another bug"]
