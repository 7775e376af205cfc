"""The front's half of its compile worker: start it, give it jobs, hear from it, end it.

A worker owes signs of life, and while it has a job it owes places. Only time in which the front was awake counts (see
`warmpool.watchdog`): after one in which both of them were stopped, nothing is late.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from typing import Self

import msgspec

from warmpool.compiling import protocol
from warmpool.compiling.protocol import Done, FromWorker, Job, Open, Placed
from warmpool.watchdog import LOOK_S, Cause, Debt, Watchdog

SILENT_S_MAX = 60.0  # thirty times what is between its signs of life: it is as nice as can be on a busy machine
SETUP_S_MAX = 600.0  # of a job, and of what is done for a place in the store
WALLS_A_PLACE = 16
"""How often the limit of one compile a job may take for the next place.

Others are waited for 4 times that; then three places at most are begun for each child at a time before the first is
filled, each of which takes a compile, a reference and a trial: 13. A few more are for references at other sizes.
"""
ENDING_S_MAX = 5.0
COMMAND = (sys.executable, "-m", "warmpool.compiling.worker_process")
_LIFE, _PLACE = "life", "place"


class WorkerEnded(Exception):
    """The worker is gone, or as good as gone; the message says how."""


class WorkerProcess:
    """A worker that runs. Lives in the event loop's thread, which has to be the main one: the worker dies with it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        streams: tuple[asyncio.ReadTransport, asyncio.WriteTransport],
        wall_s_max: float,
    ) -> None:
        self.process = process
        self._reader = reader
        self._from, self._to = streams
        self._watchdog = Watchdog(SILENT_S_MAX)
        self._place = Debt(_PLACE, Cause.RUN_HUNG, "a place", SETUP_S_MAX + WALLS_A_PLACE * wall_s_max)

    @classmethod
    async def start(cls, opening: Open) -> Self:
        """Start one. Raises OSError."""
        loop = asyncio.get_running_loop()
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220  # as vfork
        assert process.stdin is not None
        assert process.stdout is not None
        reader = asyncio.StreamReader(limit=protocol.LINE_BYTES_MAX)
        heard, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        told, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
        told.write(protocol.line(opening))
        return cls(process, reader, (heard, told), opening.limits.wall_s_max)

    def give(self, job: Job) -> None:
        """Let it do a job. It may be gone, which is heard."""
        self._to.write(protocol.line(job))
        self._watchdog.lend(self._place, time.monotonic())

    async def heard(self) -> FromWorker:
        """The next thing that it says. Raises WorkerEnded."""
        self._watchdog.lend(Debt(_LIFE, Cause.SILENT, "a sign of life", SILENT_S_MAX), time.monotonic())
        try:
            line = await self._line()
            if not line:
                raise WorkerEnded("it died")
            message = protocol.from_worker(line)
        except (ValueError, msgspec.MsgspecError) as error:
            raise WorkerEnded(f"it said what nobody understands: {error}") from None
        self._watchdog.paid(_LIFE, time.monotonic())
        if isinstance(message, Placed | Done):
            self._watchdog.paid(_PLACE, time.monotonic())
        if isinstance(message, Placed):
            self._watchdog.lend(self._place, time.monotonic())
        return message

    async def _line(self) -> bytes:
        """What comes next, b"" at the end. Raises WorkerEnded where something is overdue, and ValueError."""
        while True:
            if overdue := self._watchdog.look(time.monotonic()):
                raise WorkerEnded(overdue.detail)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._reader.readline(), LOOK_S)

    async def end(self) -> None:
        """End it: first its stdin ends, then it is killed."""
        self._to.close()
        for kill in (False, True):
            if kill:
                self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, ENDING_S_MAX)
        self._from.close()
