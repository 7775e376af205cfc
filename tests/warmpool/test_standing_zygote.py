"""The zygote that lanes come from: one that dies is replaced, and so is one that only stands there."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.instance_process import wait_until
from warmpool.forking import Zygote
from warmpool.standing_zygote import StandingZygote
from warmpool.watchdog import Cause, Limits

WAIT_S_MAX = 30.0


@pytest.fixture
def with_zygote():
    """Runs a coroutine function with a zygote that has started, and an event that is set when another has."""

    def run(coroutine, limits):
        async def main():
            started = asyncio.Event()
            zygote = StandingZygote(Zygote.start("jaxlib"), "jaxlib", lambda stages: started.set(), limits)
            zygote.watch()
            try:
                async with asyncio.timeout(WAIT_S_MAX):
                    await started.wait()
                    started.clear()
                    await coroutine(zygote, started)
            finally:
                zygote.unwatch()
                zygote.close()

        asyncio.run(main())

    return run


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGSTOP, Cause.SILENT), (signal.SIGKILL, Cause.KILLED)])
def test_one_that_is_gone_or_does_not_answer_is_replaced(with_zygote, number, cause):
    async def story(zygote, started):
        pid = zygote.current.process.pid
        os.kill(pid, number)
        await started.wait()
        assert zygote.current.process.pid != pid
        assert zygote.describe() == {"pid": zygote.current.process.pid, "ended": {cause: 1}}
        with zygote.current.fork("tests.warmpool.forked:echo", {"suffix": "."}) as channel:
            assert await asyncio.to_thread(channel.recv, 1000)

    with_zygote(story, Limits(answer_s_max=4.0, ask_every_s=0.5))


def test_one_that_answers_is_left_alone_and_told_of_its_start_once(with_zygote):
    """It is asked many times over; a machine on which it cannot answer within ten seconds is no machine."""

    async def story(zygote, started):
        pid, asked = zygote.current.process.pid, []
        ask = zygote.current.ask
        answered = asyncio.Event()

        def ask_and_count():
            ask()
            asked.append(True)
            if len(asked) == 3:  # the third is asked once two were answered
                answered.set()

        zygote.current.ask = ask_and_count
        await answered.wait()
        assert zygote.current.process.pid == pid
        assert not started.is_set()
        assert zygote.ends == {}

    with_zygote(story, Limits(ask_every_s=0.1))


def test_one_that_does_not_even_start_is_replaced_after_the_limit_of_a_start():
    async def main():
        first = Zygote.start("jaxlib")
        os.kill(first.process.pid, signal.SIGSTOP)
        started = asyncio.Event()
        zygote = StandingZygote(first, "jaxlib", lambda stages: started.set(), Limits(load_s_max=2.0))
        try:
            zygote.watch()
            await asyncio.to_thread(wait_until, lambda: zygote.current is not first)
            assert zygote.ends[Cause.START_HUNG] >= 1
        finally:
            zygote.unwatch()
            zygote.close()

    asyncio.run(main())
