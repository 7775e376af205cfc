"""The zygote: a process that has imported jax and has no backend, so that every lane and worker is a cheap fork of it.

An instance's first one is itself a fork of the front (`Zygote.fork_off`), made once that has imported what both need.

Forking is safe only before a backend exists: children of a process that has one hang. So the zygote imports, forks,
reaps, and does nothing else. It is asked over a socket whose every message is one JSON object; a fork request carries
the child's own channel (and any other descriptors), and the last message on that channel is the child's exit status,
from the zygote.

    parent  --{"entry", "argument", "nice", "memory_bytes_max", "orphan"} + descriptors-->  zygote
    zygote  --{"stages"} once, when it is ready to fork-->  parent
    parent  --{} and no descriptors: is it well?-->  zygote,  --{"stages": []}-->  parent
    child   --{"pid"} and whatever its entry sends-->  parent            (the channel)
    zygote  --{"exit": status}-->  parent                                (the channel, when the child is gone)

The parent's half, which needs none of this file's children, is in `warmpool.forking`.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.parent_death import end_with_parent

DESCRIPTORS_MAX = 8
_COLLECTED_AFTER_S = 0.1
_HEED_CPU_S = 2
# What checks a signature: 4 ms, here once instead of in every lane.
_SIGNATURES = ("cryptography.exceptions", "cryptography.hazmat.primitives.asymmetric.ed25519")
_SHARED = ("numpy", "ml_dtypes", "cache.executable", "warmpool.lane", *_SIGNATURES)  # the front needs nearly all of it
_PRELOAD = {
    "jaxlib": ("jaxlib.xla_client",),
    "jax": ("jax", "jax.export"),
    "compiling": ("jax", "jax.export", "scipy.linalg"),  # which the first lowering imports: 0.1 s of every child
}


def import_shared() -> None:
    """Import what the front needs as much as lanes do, so neither jax nor jaxlib. No thread is made."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads spin for 50 ms when they are made, and must not be forked
    for module in _SHARED:
        importlib.import_module(module)


def main(arguments: list[str]) -> int:
    """`python -m warmpool.zygote DESCRIPTOR PRELOAD STARTED_NS`: fork on request until the parent is gone."""
    descriptor, preload, started_ns = arguments
    parent = socket.socket(fileno=int(descriptor))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # XLA's informational lines are noise in a service's log
    begun_ns = time.time_ns()
    gc.disable()  # what is imported stays
    if preload == "jaxlib":
        sys.modules["jax"] = None  # type: ignore[assignment]  # nothing forked from here can trace or compile
    import_shared()
    for module in _PRELOAD[preload]:
        importlib.import_module(module)
    gc.freeze()  # collections in children then leave the shared pages alone
    gc.enable()
    ready_ns = time.time_ns()
    stages = [("zygote start", int(started_ns), begun_ns), (f"import {preload}", begun_ns, ready_ns)]
    _send(parent, {"stages": stages})
    _serve(parent)
    return 0


def _serve(parent: socket.socket) -> None:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    channels: dict[int, socket.socket] = {}
    dead = _Dead()
    while True:
        ready, _, _ = select.select((parent.fileno(), wake_read), (), (), dead.due_s())
        dead.collect()
        if wake_read in ready:
            os.read(wake_read, 4096)
            dead.tell(channels)
        if parent.fileno() in ready:
            message, descriptors = _receive(parent)
            if not message:
                return
            if descriptors:
                channel = socket.socket(fileno=descriptors[0])
                pid = _fork(message, channel, descriptors[1:], (parent, *channels.values()), (wake_read, wake_write))
                channels[pid] = channel
            else:
                _send(parent, {"stages": []})


def _fork(
    message: bytes,
    channel: socket.socket,
    extra: list[int],
    sockets: tuple[socket.socket, ...],
    pipe: tuple[int, int],
) -> int:
    """Fork a child with its channel and other descriptors, and without what is the zygote's own; its process id."""
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for other in sockets:
            other.close()
        for descriptor in pipe:
            os.close(descriptor)
        _child(json.loads(message), channel, extra)
    for descriptor in extra:
        os.close(descriptor)
    return pid


class _Dead:
    """Children whose exit status was sent, and who are not collected yet.

    Linux tells of an end before the last thread of a process has taken its traces out of /proc. Who collects it then
    turns round in the kernel until that thread is done, which it is not while it is niced and waits for its turn: tens
    of milliseconds of CPU time a child.
    """

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def due_s(self) -> float | None:
        """Seconds until there is one to collect; None where there is none at all."""
        first_s = next(iter(self._since_s.values()), None)
        return None if first_s is None else max(0.0, first_s + _COLLECTED_AFTER_S - time.monotonic())

    def tell(self, channels: dict[int, socket.socket]) -> None:
        """Send the exit status of each that ended since."""
        for pid in list(channels):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._since_s[pid] = time.monotonic()
                exited = found.si_code == os.CLD_EXITED
                with channels.pop(pid) as channel:
                    _send(channel, {"exit": found.si_status if exited else -found.si_status})

    def collect(self) -> None:
        """Those that ended long enough ago."""
        while self.due_s() == 0.0:
            pid = next(iter(self._since_s))
            os.waitpid(pid, 0)
            del self._since_s[pid]


def _child(request: dict[str, Any], channel: socket.socket, descriptors: list[int]) -> NoReturn:
    """Run one entry in a fresh fork, and never return into the zygote."""
    status = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if not request["orphan"]:
            end_with_parent()
        os.nice(request["nice"])
        if limit_s := math.ceil(request["cpu_s_max"]):
            # SIGXCPU first, which says what it was; a child that does not heed it is killed.
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + _HEED_CPU_S))
        if limit := request["memory_bytes_max"]:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        _send(channel, {"pid": os.getpid()})
        module, _, name = request["entry"].partition(":")
        getattr(importlib.import_module(module), name)(request["argument"], channel, descriptors)
        status = 0
    except BaseException:  # noqa: BLE001  # nothing may unwind into the zygote's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # no destructor of the zygote's runs in a child


def _receive(parent: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, ancillary, _, _ = parent.recvmsg(
            MESSAGE_BYTES_MAX, socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
        )
    except ConnectionResetError:  # the parent closed its end without having read our stages
        return b"", []
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the other end is gone: there is nobody left to tell
        channel.send(json.dumps(message).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
