"""The process of a lane, as the front sees it: forked, spoken to, and heard to its end. One at a time.

Everything here happens in the event loop's thread, in callbacks that do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from warmpool import messages
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.load_queue import CRASHES
from warmpool.standing_zygote import StandingZygote
from warmpool.watchdog import ANSWER, LOOK_S, Cause, Limits, Watchdog, paid_by

if TYPE_CHECKING:
    from cache.executable import Mode

log = logging.getLogger(__name__)

_OF_NO_LOAD = {Cause.REPLACED, Cause.RUN_HUNG, Cause.SILENT, Cause.OUT_OF_MEMORY, Cause.MISTAKE}


class Ended(NamedTuple):
    """The end of a process: why, with which status (negative for a signal), and more of it for people."""

    cause: Cause
    status: int
    detail: str = ""

    def __str__(self) -> str:
        if self.cause in {Cause.CRASHED, Cause.KILLED, Cause.EXITED}:
            return f"died with status {self.status}"
        return "was replaced" if self.cause is Cause.REPLACED else f"was ended: {self.detail}"

    def of_a_load(self, *, had_warm: bool) -> bool:
        """Whether what it was loading may be to blame. A device lost before anything was warm was lost all along."""
        if self.cause is Cause.DEVICE_LOST:
            return had_warm
        return self.cause not in _OF_NO_LOAD


class LaneProcess:
    """The process that a lane has now, if it has one. What owes an answer for too long is ended.

    Args:
        name: Of the lane.
        zygote: Forks it.
        limits: How long it may take for what.
        heard: Is told each message; if that fails, the process is ended, since nobody knows what is so any more.
        ended: Is told of the end of one that is gone. There is no process by then.

    Attributes:
        pid: None until it is known.
    """

    def __init__(
        self,
        name: str,
        zygote: StandingZygote,
        limits: Limits,
        heard: Callable[[messages.FromLane], None],
        ended: Callable[[Ended], None],
    ) -> None:
        self.pid: int | None = None
        self._name = name
        self._zygote = zygote
        self._heard = heard
        self._ended = ended
        self._limits = limits
        self._watchdog = Watchdog(limits.ask_every_s)
        self._doomed: tuple[Cause, str] | None = None
        self._channel: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._answers: list[asyncio.Future[messages.Answer | None]] = []

    @property
    def there(self) -> bool:
        """Whether there is one, as far as is known."""
        return self._channel is not None

    @property
    def hung_up(self) -> bool:
        """Whether there is none, or it is to be killed, or its end is there to be read."""
        if self._channel is None or self._doomed is not None:
            return True
        try:
            next_message = self._channel.recv(32, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        return not next_message or next_message.startswith(b'{"exit"')

    def start(self, mode: Mode, begin: messages.Begin, descriptor: int) -> None:
        """Fork it, and tell it what it has to know. What the zygote raises is passed on."""
        self._doomed = None
        self._over.clear()
        self._channel = self._zygote.current.fork_lane(mode)
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._readable)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # as in `send`
            socket.send_fds(self._channel, [messages.encode(begin)], [descriptor])
        self._watchdog = Watchdog(self._limits.ask_every_s)
        self._watchdog.lend(self._limits.start, self._loop.time())
        self._loop.call_later(LOOK_S, self._look, self._channel)

    def send(self, message: messages.FromFront, run_s_max: float | None = None) -> None:
        """Say something. There has to be one; it may have died meanwhile. `run_s_max`: for a run."""
        assert self._channel is not None
        if debt := self._limits.debt_of(message, run_s_max):
            self._watchdog.lend(debt, self._loop.time())
        # Where it has died, reading its end of file is about to handle everything.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(messages.encode(message))

    async def ask(self, wait_s_max: float) -> messages.Answer | None:
        """What it says of itself; None if it dies, or is in the middle of a batch for longer."""
        if self.pid is None:
            return None
        answer: asyncio.Future[messages.Answer | None] = self._loop.create_future()
        self._answers.append(answer)
        if not self._watchdog.owes(ANSWER):
            self.send(messages.Ask())
        try:
            return await asyncio.wait_for(asyncio.shield(answer), wait_s_max)
        except TimeoutError:
            return None

    async def stop(self, wait_s_max: float) -> None:
        """End it: first asked, then killed."""
        if not self.there:
            return
        self.send(messages.Stop())
        try:
            await asyncio.wait_for(self._over.wait(), wait_s_max)
        except TimeoutError:
            self.kill()

    def end(self, cause: Cause, detail: str = "") -> None:
        """Kill it, if there is one, as soon as it is known by number. The first cause is the one that counts."""
        if self.there:
            self._doomed = self._doomed or (cause, detail)
            self._end_doomed()

    def kill(self) -> None:
        """Kill it, if it is known by number."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # its end is about to be read
                os.kill(self.pid, signal.SIGKILL)

    def give_up(self, error: Exception) -> None:
        """End one about which the front knows no more what is so: the next one begins from nothing."""
        log.error("what a lane said cannot be dealt with", exc_info=error, extra={"lane": self._name})
        if self.there:  # else it was its death that could not be dealt with, and the next one is on its way
            self.end(Cause.MISTAKE, f"the front failed: {type(error).__name__}")
            self._gone(-signal.SIGKILL)

    def _look(self, channel: socket.socket) -> None:
        """See whether it owes something for too long, and ask it how it is, as long as it has this channel."""
        self._catch_up(channel)  # should the loop not have called
        if channel is not self._channel:
            return
        now_s = self._loop.time()
        if overdue := self._watchdog.look(now_s):
            self.end(*overdue)
        elif self._watchdog.to_ask(now_s):
            self.send(messages.Ask())
        self._loop.call_later(LOOK_S, self._look, channel)

    def _readable(self) -> None:
        """Read one message. Where more of them wait, the loop calls again; but uvloop does not after an error."""
        assert self._channel is not None
        try:
            self._read(self._channel)
        except ConnectionResetError:
            self._catch_up(self._channel)

    def _catch_up(self, channel: socket.socket) -> None:
        """Read all that waits, as long as it has this channel."""
        more = True
        while more and channel is self._channel:
            with contextlib.suppress(ConnectionResetError):
                more = self._read(channel)

    def _read(self, channel: socket.socket) -> bool:
        """Read one message; whether there was one.

        Raises:
            ConnectionResetError: It is gone, and left something unread. Once: then what it said comes, and its end.
        """
        try:
            data = channel.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return False
        try:
            self._received(messages.decode_from_lane(data) if data else messages.Gone(exit=-signal.SIGKILL))
        except Exception as error:  # noqa: BLE001  it is logged
            self.give_up(error)
        return True

    def _received(self, message: messages.FromLane | messages.Born | messages.Gone) -> None:
        match message:
            case messages.Born():
                self.pid = message.pid
                self._end_doomed()
            case messages.Gone():
                self._gone(message.exit)
            case messages.Lost():
                self.end(Cause.DEVICE_LOST, f"its device is lost: {message.reason}")
            case _:
                self._watchdog.paid(paid_by(message), self._loop.time())
                if isinstance(message, messages.Answer):
                    self._answered(message)
                self._heard(message)

    def _end_doomed(self) -> None:
        if self._doomed is not None:
            self.kill()

    def _answered(self, message: messages.Answer | None) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            if not answer.done():
                answer.set_result(message)

    def _gone(self, status: int) -> None:
        assert self._channel is not None
        self._answered(None)
        self._loop.remove_reader(self._channel)
        self._channel.close()
        self._channel, self.pid = None, None
        self._over.set()
        self._ended(Ended(self._doomed[0], status, self._doomed[1]) if self._doomed else Ended(_cause(status), status))


def _cause(status: int) -> Cause:
    """Why one ended that nobody here has ended."""
    if status in CRASHES:
        return Cause.CRASHED
    return Cause.KILLED if status < 0 else Cause.EXITED
