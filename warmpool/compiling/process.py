"""The front's half of its compile worker: start it, give it jobs, hear from it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import Self

import msgspec

from warmpool.compiling import protocol
from warmpool.compiling.protocol import FromWorker, Job, Open

SILENT_S_MAX = 60.0  # thirty times what is between its signs of life: it is as nice as can be on a busy machine
ENDING_S_MAX = 5.0


class WorkerEnded(Exception):
    """The worker is gone, or as good as gone; the message says how."""


class WorkerProcess:
    """A worker that runs. Lives in the event loop's thread, which has to be the main one: the worker dies with it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        streams: tuple[asyncio.ReadTransport, asyncio.WriteTransport],
    ) -> None:
        self.process = process
        self._reader = reader
        self._from, self._to = streams

    @classmethod
    async def start(cls, opening: Open) -> Self:
        """Start one. Raises OSError."""
        loop = asyncio.get_running_loop()
        command = [sys.executable, "-m", "warmpool.compiling.worker_process"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220  # as vfork
        assert process.stdin is not None
        assert process.stdout is not None
        reader = asyncio.StreamReader(limit=protocol.LINE_BYTES_MAX)
        heard, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        told, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
        told.write(protocol.line(opening))
        return cls(process, reader, (heard, told))

    def give(self, job: Job) -> None:
        """Let it do a job. It may be gone, which is heard."""
        self._to.write(protocol.line(job))

    async def heard(self) -> FromWorker:
        """The next thing that it says. Raises WorkerEnded."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), SILENT_S_MAX)
            if line:
                return protocol.from_worker(line)
        except TimeoutError:
            raise WorkerEnded(f"it gave no sign of life for {SILENT_S_MAX:g} s") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise WorkerEnded(f"it said what nobody understands: {error}") from None
        raise WorkerEnded("it died")

    async def end(self) -> None:
        """End it: first its stdin ends, then it is killed."""
        self._to.close()
        for kill in (False, True):
            if kill:
                self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, ENDING_S_MAX)
        self._from.close()
