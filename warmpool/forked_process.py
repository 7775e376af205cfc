"""A process that is a fork of this one: what is imported here is not imported again there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn

_POLL_S = 0.005


class ForkedProcess:
    """A fork of this process, with as much of a `subprocess.Popen` as a zygote's needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    @classmethod
    def start(cls, main: Callable[[list[str]], int], arguments: list[str], descriptor: int) -> ForkedProcess:
        """Fork this process, which has to have one thread; the fork calls main(arguments).

        It keeps the standard streams, with nothing to read, and one descriptor.
        """
        pid = os.fork()
        if pid == 0:
            _become(main, arguments, descriptor)
        return cls(pid)

    def poll(self) -> int | None:
        """Its exit status, None while it runs; 0 where somebody else has waited for it, as with `Popen`."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired if it runs on for so many seconds; None: no limit."""
        started_s = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - started_s >= timeout:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(_POLL_S)
        return status


def has_one_thread() -> bool:
    """Whether this process may be forked."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _become(main: Callable[[list[str]], int], arguments: list[str], descriptor: int) -> NoReturn:
    """In a fork: be what `start` would have started, with the standard streams and one descriptor of this process."""
    status = 1
    try:
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        status = main(arguments)
    except BaseException:  # noqa: BLE001  # nothing may unwind into what was forked
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
