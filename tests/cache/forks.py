"""Processes of tests, as forks of one that has imported what they need: a client of GCS takes a second of CPU time.

`python -m tests.cache.forks DESCRIPTOR` is what they are forks of. It is asked over a socket of datagrams:

    {"call": "module:function", "arguments": list} + descriptors of standard input, output and, if need be, error
        -->  {"pid"}
    {"wait": pid}  -->  {"status": its exit status, negative for a signal, null as long as it runs}
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ("cache.gcs_store", "cache.read_through", "cache.single_flight", "benchmarks.gameday.gcs_server")
ENDED_S_MAX = 120.0
HUNG_S = 240  # longer than any of them waits for anything


class _Server:
    """What the forks of this process of tests come from."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        atexit.register(self.close)

    def ask(self, request: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
        answer: dict[str, Any] = json.loads(self._control.recv(1 << 16))
        return answer

    def close(self) -> None:
        self._control.close()
        self._process.wait(ENDED_S_MAX)


@functools.cache
def _server() -> _Server:
    return _Server()


class Fork:
    """A process that calls a function, with pipes as its standard input and output; to be closed.

    Args:
        call: "module:function".
        arguments: Its arguments, as JSON has them.
        tells_errors: Whether standard error is a pipe too, and not that of the tests.
    """

    def __init__(self, call: str, *arguments: object, tells_errors: bool = False) -> None:
        (stdin, write), (read, stdout) = os.pipe(), os.pipe()
        read_error, stderr = os.pipe() if tells_errors else (None, None)
        theirs = [stdin, stdout] if stderr is None else [stdin, stdout, stderr]
        self.pid: int = _server().ask({"call": call, "arguments": arguments}, *theirs)["pid"]
        for descriptor in theirs:
            os.close(descriptor)
        self.stdin, self.stdout = os.fdopen(write, "w"), os.fdopen(read)
        self.stderr = None if read_error is None else os.fdopen(read_error)
        self.returncode: int | None = None

    def hear(self) -> str:
        """The next line that it says, "" if it ended."""
        return self.stdout.readline().rstrip("\n")

    def tell(self, line: str) -> None:
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def rest(self) -> tuple[str, str]:
        """What else it says on standard output and error until it ends."""
        return self.stdout.read(), self.stderr.read() if self.stderr else ""

    def wait(self, wait_s_max: float = ENDED_S_MAX) -> int:
        """Its exit status, negative for a signal."""
        deadline_s = time.monotonic() + wait_s_max
        while self.returncode is None:
            self.returncode = _server().ask({"wait": self.pid})["status"]
            assert self.returncode is not None or time.monotonic() < deadline_s, "it does not end"
            if self.returncode is None:
                time.sleep(0.005)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End its input, wait for it, and kill it where that is not enough."""
        try:
            self.stdin.close()
            self.wait()
        finally:
            self.kill()
            self.wait()
            for stream in (self.stdout, self.stderr):
                if stream:
                    stream.close()


def _serve(control: socket.socket) -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not data:
            return
        request = json.loads(data)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            answer = {"pid": os.fork()}
            if answer["pid"] == 0:
                control.close()
                _in_fork(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(json.dumps(answer).encode())


def _in_fork(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    signal.alarm(HUNG_S)  # nobody who reads what it says waits for ever
    status = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        module, _, name = request["call"].partition(":")
        getattr(importlib.import_module(module), name)(*request["arguments"])
        atexit._run_exitfuncs()  # temporary files go
        status = 0
    except BaseException:  # noqa: BLE001  nothing may unwind into the parent's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
