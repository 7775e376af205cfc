"""The processes of `make run`: ports checked before they start, their deaths noticed, all ended in order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from examples.loopback import HOST, get_or_post

STOP_S_MAX = 30.0
POLL_S = 0.05


class RunFailed(Exception):
    """Something that the run needs did not work; the message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that runs until it is stopped."""

    name: str
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """Raises RunFailed if the process has ended."""
        code = self.process.poll()
        if code is not None:
            how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise RunFailed(f"{self.name} {how}; what it had to say is above")


def check_ports(ports: Mapping[str, int]) -> None:
    """Check that every port is free and none is used twice.

    Args:
        ports: The name of each port's setting, and its number.

    Raises:
        RunFailed: One is not; the message names its setting.
    """
    owners: dict[int, str] = {}
    for setting, port in ports.items():
        if port in owners:
            raise RunFailed(
                f"{setting}: port {port} is {owners[port]} already; give each its own, as {setting}={port + 1}"
            )
        owners[port] = setting
        with closing(socket.socket()) as probe:
            # As servers do: a port whose last connections linger is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise RunFailed(
                    f"{setting}: port {port} cannot be had ({error.strerror}); choose another with {setting}=..."
                ) from None


def run(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command to its end, its output shown; it gets `environment` beside our own.

    Raises:
        RunFailed: It failed.
    """
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})})
    try:
        code = process.wait()
    except KeyboardInterrupt:
        stop(Child(name, process))
        raise
    if code:
        raise RunFailed(f"{name} failed with status {code}; what it had to say is above")


@contextmanager
def running(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A child for the duration of a block."""
    # In a process group of its own, so that Ctrl-C reaches only us, and we end the children in order.
    child = Child(name, subprocess.Popen(command, env={**os.environ, **(environment or {})}, process_group=0))
    try:
        yield child
    finally:
        stop(child)


def stop(child: Child) -> None:
    """Ask a process to end, wait for it, and end it the hard way if it takes too long. Idempotent."""
    if child.process.poll() is None:
        child.process.terminate()
    try:
        child.process.wait(STOP_S_MAX)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.process.kill()
        child.process.wait()


def await_ready(url: str, children: Sequence[Child], wait_s_max: float) -> None:
    """Wait until `url` answers 200.

    Raises:
        RunFailed: A child ended, or the time ran out.
    """
    deadline_s = time.monotonic() + wait_s_max
    said = "nothing"
    while time.monotonic() < deadline_s:
        for child in children:
            child.check()
        try:
            with get_or_post(url, timeout_s=1.0):
                return
        except urllib.error.HTTPError as error:
            said = f"status {error.code}"
        except OSError as error:
            said = str(error)
        time.sleep(POLL_S)
    raise RunFailed(f"{url} did not become ready within {wait_s_max:.0f} s; it last answered: {said}")


def await_death(children: Sequence[Child]) -> None:
    """Block until a child ends, which raises RunFailed, or a signal interrupts."""
    while True:
        for child in children:
            child.check()
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # leaves the dead to be reaped by its owner
