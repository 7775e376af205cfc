"""The zygote that lanes come from: one that dies is replaced, and so is one that only stands there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading

import pytest

from tests.instance_process import alive, children_of, wait_until
from warmpool.forking import Zygote
from warmpool.standing_zygote import StandingZygote
from warmpool.watchdog import Cause, Limits

WAIT_S_MAX = 60.0


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


def test_the_one_that_replaces_it_forks_ahead_what_it_was_to(with_zygote):
    async def story(zygote, started):
        zygote.fork_ahead("jaxlib")
        (there,) = await asyncio.to_thread(wait_until, lambda: children_of(zygote.current.process.pid))
        os.kill(zygote.current.process.pid, signal.SIGKILL)
        await started.wait()
        await asyncio.to_thread(wait_until, lambda: not alive(there))
        (another,) = await asyncio.to_thread(wait_until, lambda: children_of(zygote.current.process.pid))
        with zygote.current.fork_lane("jaxlib") as taken:
            assert json.loads(await asyncio.to_thread(taken.recv, 1000)) == {"pid": another}

    with_zygote(story, Limits())


class Lingering:
    """The process of a zygote that is killed, and whose end the system tells only once it is let go."""

    def __init__(self, process):
        self.pid = process.pid
        self.let_go = threading.Event()
        self.killed = False
        self.reaped = threading.Event()
        self.waits = []  # for how long at most, and in which thread
        self._process = process

    def kill(self):
        self.killed = True
        self._process.kill()

    def poll(self):
        if not self.let_go.is_set():
            return None
        self._process.wait()
        self.reaped.set()
        return self._process.returncode

    def wait(self, timeout=None):
        self.waits.append((timeout, threading.current_thread()))
        if self.poll() is None:
            raise subprocess.TimeoutExpired("it", timeout)


@pytest.mark.parametrize("lets_go", [True, False])
def test_one_that_takes_long_to_end_is_replaced_and_the_event_loop_waits_for_nothing(monkeypatch, lets_go):
    """Such as in uninterruptible sleep, which no signal ends."""

    async def main():
        started = asyncio.Event()
        zygote = StandingZygote(Zygote.start("jaxlib"), "jaxlib", lambda stages: started.set())
        process = zygote.current.process
        zygote.watch()
        lingering = Lingering(process)
        monkeypatch.setattr(zygote.current, "process", lingering)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await started.wait()
                started.clear()
                os.kill(process.pid, signal.SIGKILL)
                await started.wait()
                assert zygote.current.process.pid != process.pid
                assert lingering.killed
                assert lingering.waits == []
                if lets_go:
                    lingering.let_go.set()
                    await asyncio.to_thread(lingering.reaped.wait, WAIT_S_MAX)
        finally:
            zygote.unwatch()
            await asyncio.to_thread(zygote.close)
        assert bool(lingering.waits) != lets_go, "who did not end by then is waited for once more"
        for wait_s_max, thread in lingering.waits:
            assert wait_s_max is not None
            assert thread is not threading.main_thread()
        process.wait()

    asyncio.run(main())


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
