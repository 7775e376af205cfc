"""The parent's half of the zygote: start one, fork lanes from it, run bounded jobs in its forks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Literal, Self

from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.errors import WarmpoolError
from warmpool.forked_process import ForkedProcess, has_one_thread

Preload = Literal["jaxlib", "jax", "compiling"]

_STDERR_SHOWN_BYTES = 2000
_KILLED_S_MAX = 10.0
_LANE = "warmpool.lane:main"


class WorkerFailed(WarmpoolError):
    """A job in a forked child did not give a result.

    `reason` is one of "exception", "crash", "timeout", "cpu", "memory"; `detail` says more in one line.
    """

    def __init__(self, entry: str, reason: str, detail: str) -> None:
        super().__init__(f"{entry.partition(':')[2]}: {reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Zygote:
    """A running zygote. Thread-safe: requests are single datagrams, and every child has a channel of its own."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, control: socket.socket) -> None:
        self.process = process
        self.control = control
        self._ahead: dict[str, socket.socket] = {}

    @classmethod
    def start(cls, preload: Preload) -> Zygote:
        """Start a zygote; it can be asked at once, and forks as soon as it has imported."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "warmpool.zygote", str(theirs.fileno()), preload, str(time.time_ns())]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        return cls(process, ours)

    @classmethod
    def fork_off(cls, preload: Preload, main: Callable[[list[str]], int]) -> Zygote:
        """As `start`, but a fork of this process: what is imported here is not imported again there.

        Only a process with one thread may be forked. Where another was made (by a tool that runs the program), this is
        `start`.

        Args:
            preload: what it is to import.
            main: the zygote's, which this file does not import.
        """
        if not has_one_thread():
            return cls.start(preload)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(theirs.fileno()), preload, str(time.time_ns())]
        with theirs:
            process = ForkedProcess.start(main, arguments, theirs.fileno())
        return cls(process, ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, wait_s_max: float = 5.0) -> None:
        """End the zygote and its workers. Lanes end by themselves when their channels close.

        It is killed after `wait_s_max` seconds. What then does not end within 10 s sleeps in the kernel, and is left.
        """
        self.hang_up()
        try:
            self.process.wait(wait_s_max)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_KILLED_S_MAX)

    def hang_up(self) -> None:
        """Tell it to end, and wait for nothing. Idempotent."""
        for channel in (self.control, *self._ahead.values()):
            channel.close()
        self._ahead.clear()

    def ask(self) -> None:
        """Ask whether it is well: `read_stages` gives none. It answers in the order of all that it is asked for."""
        with contextlib.suppress(OSError):  # it is gone, and that is about to be read
            self.control.send(b"{}")

    def read_stages(self) -> list[tuple[str, int, int]] | None:
        """Its (name, start_ns, end_ns), once it can fork; None when it is gone. Call it when `control` is readable."""
        try:
            data = self.control.recv(MESSAGE_BYTES_MAX)
        except ConnectionResetError:
            return None
        return [(name, start, end) for name, start, end in json.loads(data)["stages"]] if data else None

    def fork(
        self,
        entry: str,
        argument: dict[str, Any],
        *,
        descriptors: tuple[int, ...] = (),
        nice: int = 0,
        cpu_s_max: float = 0.0,
        memory_bytes_max: int = 0,
        orphan: bool = False,
    ) -> socket.socket:
        """Ask for a fork that calls `entry` ("module:function") with (argument, channel, descriptors).

        Args:
            entry: what the child calls.
            argument: a JSON object for it.
            descriptors: open files it gets, besides its channel.
            nice: added to its niceness.
            cpu_s_max: limit on the CPU time of all its threads, in whole seconds, 0 for none.
            memory_bytes_max: limit on its private memory, 0 for none.
            orphan: whether it outlives the zygote.

        Returns:
            Our end of its channel. Its first message is {"pid"}, its last {"exit"}; end of file without that one means
            that the zygote is gone too.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "entry": entry,
            "argument": argument,
            "nice": nice,
            "cpu_s_max": cpu_s_max,
            "memory_bytes_max": memory_bytes_max,
            "orphan": orphan,
        }
        with theirs:
            try:
                socket.send_fds(self.control, [json.dumps(request).encode()], [theirs.fileno(), *descriptors])
            except OSError as error:
                ours.close()
                raise WarmpoolError(f"the zygote is gone: {error.strerror}") from error
        return ours

    def fork_ahead(self, mode: str) -> None:
        """Have a lane's process there before it is asked for: it makes its client, and waits for its first message.

        There is one of a mode at a time; where that has died, another. It ends with the zygote until it is taken.
        """
        self._ahead[mode] = self._waiting(mode) or self.fork(_LANE, {"mode": mode})

    def fork_lane(self, mode: str) -> socket.socket:
        """Ask for a lane's process, or take the one that is there; our end of its channel, as `fork` gives it."""
        # A lane outlives its zygote: losing the one must not lose the others.
        return self._waiting(mode) or self.fork(_LANE, {"mode": mode}, orphan=True)

    def _waiting(self, mode: str) -> socket.socket | None:
        """Take the one of a mode that is there, unless it has died."""
        channel = self._ahead.pop(mode, None)
        if channel is None or not _hung_up(channel):
            return channel
        channel.close()
        return None

    def run(
        self,
        entry: str,
        argument: dict[str, Any],
        *,
        wall_s_max: float,
        cpu_s_max: float = 0.0,
        memory_bytes_max: int = 0,
        nice: int = 19,
    ) -> dict[str, Any]:
        """Call `entry` ("module:function", dict -> dict) in a fork, wait, return its result. Raises WorkerFailed."""
        with tempfile.TemporaryFile() as stderr:
            channel = self.fork(
                "warmpool.forking:_call",
                {"entry": entry, "argument": argument},
                descriptors=(stderr.fileno(),),
                nice=nice,
                cpu_s_max=cpu_s_max,
                memory_bytes_max=memory_bytes_max,
            )
            with channel:
                return _result(entry, channel, stderr, wall_s_max)


def _hung_up(channel: socket.socket) -> bool:
    """Whether the other end is closed: by the child, and by the zygote, which keeps it until the child is gone."""
    polled = select.poll()
    polled.register(channel, 0)  # a hang-up is told unasked
    return bool(polled.poll(0))


def _result(entry: str, channel: socket.socket, stderr: IO[bytes], wall_s_max: float) -> dict[str, Any]:
    deadline = time.monotonic() + wall_s_max
    pid, timed_out = 0, False
    outcome: dict[str, Any] = {}
    while True:
        channel.settimeout(None if timed_out else max(deadline - time.monotonic(), 0.001))
        try:
            data = channel.recv(MESSAGE_BYTES_MAX)
        except TimeoutError:
            if not pid:
                raise WorkerFailed(entry, "timeout", f"it was not even forked within {wall_s_max:g} s") from None
            timed_out = True
            os.kill(pid, signal.SIGKILL)
            continue
        message: dict[str, Any] = json.loads(data) if data else {"exit": None}
        if "exit" in message:
            break
        pid = message.get("pid", pid)
        outcome = message if "result" in message or "error" in message else outcome
    if "result" in outcome:
        result: dict[str, Any] = outcome["result"]
        return result
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_SHOWN_BYTES))
    shown = stderr.read().decode(errors="replace")
    if timed_out:
        raise WorkerFailed(entry, "timeout", f"it ran longer than {wall_s_max:g} s")
    raise _failure(entry, outcome, message["exit"], shown)


def _failure(entry: str, outcome: dict[str, Any], status: int | None, stderr: str) -> WorkerFailed:
    last_line = next((line for line in reversed(stderr.splitlines()) if line.strip()), "")
    if "error" in outcome:
        return WorkerFailed(entry, outcome["reason"], outcome["error"])
    if status is None:
        return WorkerFailed(entry, "crash", "the zygote it was forked from is gone")
    if status == -signal.SIGXCPU:
        return WorkerFailed(entry, "cpu", "it used up its CPU time")
    if "bad_alloc" in stderr or "MemoryError" in stderr or "out of memory" in stderr.lower():
        return WorkerFailed(entry, "memory", f"it ran out of its memory limit. {last_line}")
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return WorkerFailed(entry, "crash", f"{how}. {last_line}".rstrip())


def _call(argument: dict[str, Any], channel: socket.socket, descriptors: list[int]) -> None:
    """In the child: run a job and send its result or its exception."""
    import importlib

    os.dup2(descriptors[0], 2)
    module, _, name = argument["entry"].partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(argument["argument"])
        message = json.dumps({"result": result}).encode()
        if len(message) > MESSAGE_BYTES_MAX:
            raise ValueError(f"its result has {len(message)} bytes, allowed: {MESSAGE_BYTES_MAX}")  # noqa: TRY301
    except MemoryError as error:
        message = _failed("memory", f"out of memory: {error}")
    except Exception as error:  # noqa: BLE001  # whatever a job raises is its result
        message = _failed("exception", f"{type(error).__name__}: {error}")
    channel.send(message)


def _failed(reason: str, detail: str) -> bytes:
    return json.dumps({"error": detail[:_STDERR_SHOWN_BYTES], "reason": reason}).encode()
