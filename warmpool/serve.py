"""`warmpool serve`: up, in the order that makes the first answer come soonest, and down on SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from warmpool.forking import Preload, Zygote
from warmpool.settings import ACCELERATORS, PortTaken, Settings, read_settings

if TYPE_CHECKING:
    import grpc
    import uvicorn

    from warmpool.instance import Instance

log = logging.getLogger(__name__)

SETTLE_S_MAX = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `warmpool serve`; each is also WARMPOOL_<NAME> in the environment."""
    parser.add_argument("--store", help="folder's path or file:///folder")
    parser.add_argument("--host", help="address to bind (127.0.0.1)")
    parser.add_argument("--port", help="HTTP port (8000)")
    parser.add_argument("--grpc-port", help="gRPC port (8001), 0 for none")
    parser.add_argument("--accelerator", choices=ACCELERATORS, help="where the primary lane's device comes from (auto)")
    parser.add_argument("--deadline-ms", help="time a request gets that brings no deadline (30000)")
    parser.add_argument("--drain-s-max", help="time that running requests get after SIGTERM (10)")
    parser.add_argument("--queue-rows-max", help="rows that may wait, more are refused with 429 (4096)")
    parser.add_argument("--body-bytes-max", help="largest request body (64 MiB)")
    parser.add_argument("--traces-kept-max", help="traces that the local ring keeps (512)")
    parser.add_argument("--otlp-endpoint", help="base URL of an OTLP/HTTP collector")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 after an orderly drain."""
    entered_ns = time.time_ns()
    configure_logging()
    flags = {name: getattr(arguments, name, None) for name in Settings.__dataclass_fields__}
    settings = read_settings(flags, os.environ)
    if settings.grpc_port:
        with bound(settings.host, settings.grpc_port, "grpc_port"):
            pass  # gRPC binds it itself, but later: a taken port is to be told now
    with bound(settings.host, settings.port, "port") as http_socket:
        preload = preload_for(settings.accelerator)
        zygote = Zygote.start(preload)  # before anything heavy is imported here: the two import side by side
        try:
            return _serve(settings, zygote, preload, http_socket, entered_ns)
        finally:
            zygote.close()


def preload_for(accelerator: str) -> Preload:
    """Whether lanes need jax: only it knows the plugins of accelerators."""
    if accelerator == "auto":
        plugins = metadata.entry_points(group="jax_plugins") or importlib.util.find_spec("jax_plugins")
        return "jax" if plugins or importlib.util.find_spec("libtpu") else "jaxlib"
    return "jax" if accelerator == "jax" else "jaxlib"


@contextlib.contextmanager
def bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """A listening socket. Raises PortTaken where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise PortTaken(setting, host, port, error.strerror or str(error)) from None
        listener.listen(1024)
        yield listener


def _serve(settings: Settings, zygote: Zygote, preload: Preload, http_socket: socket.socket, entered_ns: int) -> int:
    import asyncio

    import uvicorn
    import uvloop

    from cache.store import open_store
    from warmpool.cold_start import ColdStart, process_start_ns
    from warmpool.http_app import http_app
    from warmpool.instance import Instance
    from warmpool.messages import Stage

    start_ns = process_start_ns()
    cold_start = ColdStart("cold start", start_ns)
    cold_start.add("front", [Stage("interpreter", start_ns, entered_ns)])

    async def run() -> None:
        instance = Instance(settings, open_store(settings.store), zygote, preload, cold_start)
        config = uvicorn.Config(
            http_app(instance),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.drain_s_max)),
        )
        config.load()
        cold_start.add("front", [Stage("import", entered_ns, time.time_ns())])
        await _run(instance, config, http_socket)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return 0


async def _run(instance: Instance, config: uvicorn.Config, http_socket: socket.socket) -> None:
    """Serve HTTP, come up beside it, wait for the signal, drain, go down."""
    import asyncio

    import uvicorn

    class Server(uvicorn.Server):
        """uvicorn's server without its signal handling: the instance drains in its own order."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[http_socket]))
        await instance.start()
        with contextlib.suppress(TimeoutError):  # what follows imports much: not while the first lane needs the loop
            await asyncio.wait_for(instance.settled.wait(), SETTLE_S_MAX)
        if instance.settings.otlp_endpoint:
            instance.traces.start_export(instance.settings.otlp_endpoint, "warmpool")
        grpc_server = await _grpc(instance)
        await stopping.wait()
        log.info("draining")
        instance.drain()
        server.should_exit = True
        if grpc_server is not None:
            await grpc_server.stop(instance.settings.drain_s_max)
        await serving
        await instance.stop()


async def _grpc(instance: Instance) -> grpc.aio.Server | None:
    if not instance.settings.grpc_port:
        return None
    from warmpool.grpc_app import start_grpc

    return await start_grpc(instance, instance.settings.host, instance.settings.grpc_port)


def configure_logging() -> None:
    """One line an event on standard error, its fields behind it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Fields("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Fields(logging.Formatter):
    """Appends a record's extra fields."""

    _standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in self._standard}
        return super().format(record) + "".join(f" {name}={value!r}" for name, value in extra.items())
