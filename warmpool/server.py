"""The servers around an instance: up in the order that makes the first answer come soonest, down on SIGTERM.

The HTTP side is imported in a thread while the lanes come up: the listening socket holds what comes before it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from warmpool import slices
from warmpool.messages import Stage

if TYPE_CHECKING:
    import grpc

    from warmpool.http_server import HttpServer
    from warmpool.instance import Instance

log = logging.getLogger(__name__)

HTTP_WAIT_S_MAX = 0.05  # for the first lane's plan, which takes ten times as long beside an import
SETTLE_S_MAX = 2.0
END_S_MAX, END_SHARE = 3.0, 0.3  # of the time to drain, for what comes after the last answer
SWITCH_S = 0.0005  # a thread that computes gives way to the event loop after so long: Python's own is ten times that
KEEP_ALIVE_S = 75  # longer than load balancers keep idle connections, so that they close first


async def run_server(instance: Instance, http_socket: socket.socket) -> None:
    """Bring the instance up, serve until SIGTERM or SIGINT, drain, go down."""
    stopping = asyncio.Event()
    sys.setswitchinterval(SWITCH_S)
    slices.ask_for(slices.SHORT_S)  # and for all threads that are started from here
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    signal.signal(signal.SIGCHLD, lambda *_: bury())  # uvloop keeps this one for subprocesses of its own, and has none
    bury()  # what ended before that
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(instance.start())
        coming_up = group.create_task(_come_up(instance))
        tending = group.create_task(instance.tend())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(instance.underway.wait(), HTTP_WAIT_S_MAX)
        server = await asyncio.to_thread(_http_server, instance)
        gc.freeze()
        gc.enable()  # `warmpool serve` began without
        await server.listen(http_socket)
        instance.listening = True
        for lane in instance.lanes:
            instance.moved(lane)
        host, port = http_socket.getsockname()[:2]
        log.info("listening", extra={"host": host, "port": port, "grpc_port": instance.settings.grpc_port or None})
        await stopping.wait()
        log.info("draining")
        _exit_in(instance, instance.settings.drain_s_max)
        instance.drain()
        draining = group.create_task(server.drain(_answering_s(instance)))
        if coming_up.done() and (grpc_server := coming_up.result()) is not None:
            await grpc_server.stop(_answering_s(instance))
        for task in (starting, coming_up, tending):
            task.cancel()
        await draining
        await instance.stop(instance.settings.drain_s_max - _answering_s(instance))


def bury() -> None:
    """Wait for every child that has ended. Where this is process 1 of a container, lanes without a zygote are, too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answering_s(instance: Instance) -> float:
    """How long requests get after SIGTERM: the rest of the time is for lanes, the store and telemetry to end."""
    drain_s_max = instance.settings.drain_s_max
    return drain_s_max - min(END_S_MAX, END_SHARE * drain_s_max)


def _exit_in(instance: Instance, after_s: float) -> None:
    """End all processes then, whatever hangs: a thread that waits for a store would hold up the end for ever."""

    def end() -> None:
        log.warning("the time to drain is over", extra={"drain_s_max": after_s})
        for pid in instance.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        logging.shutdown()
        os._exit(0)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()


async def _come_up(instance: Instance) -> grpc.aio.Server | None:
    """Bring up what a first answer over HTTP does not need, once that can be had or has taken too long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(instance.settled.wait(), SETTLE_S_MAX)
    if instance.settings.otlp_endpoint:
        await asyncio.to_thread(instance.traces.start_export, instance.settings.otlp_endpoint, "warmpool")
    server = await _grpc_server(instance)
    gc.collect()
    gc.freeze()  # what a start leaves behind stays: no collection in a request's time has to look at it again
    return server


def _http_server(instance: Instance) -> HttpServer:
    start_ns = time.time_ns()
    from warmpool.http_app import http_app
    from warmpool.http_server import HttpServer

    server = HttpServer(http_app(instance), KEEP_ALIVE_S)
    _ = instance.metrics  # imports, in this thread
    instance.cold_start.add("front", [Stage("import http", start_ns, time.time_ns())])
    return server


async def _grpc_server(instance: Instance) -> grpc.aio.Server | None:
    if not instance.settings.grpc_port:
        return None
    grpc_app = await asyncio.to_thread(importlib.import_module, "warmpool.grpc_app")
    server: grpc.aio.Server = await grpc_app.start_grpc(instance, instance.settings.host, instance.settings.grpc_port)
    return server
