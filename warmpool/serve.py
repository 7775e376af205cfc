"""`warmpool serve`: from exec to a running zygote and a listening socket, with what both need imported and no more."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator

from warmpool import zygote
from warmpool.early_digests import EarlyDigests
from warmpool.errors import WarmpoolError
from warmpool.forking import Preload, Zygote
from warmpool.settings import ACCELERATORS, COMPILING, PortTaken, SettingError, Settings, add_store_flags, read_settings


class StoreFailed(WarmpoolError):
    """The store cannot be read at the start."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `warmpool serve`; each is also WARMPOOL_<NAME> in the environment."""
    add_store_flags(parser)
    parser.add_argument("--cache-folder", metavar="DIR", help="where copies from a bucket are kept (~/.cache/warmpool)")
    parser.add_argument("--cache-bytes-max", metavar="N", help="size of these copies (32 GiB), 0 for none")
    parser.add_argument("--host", help="address to bind (127.0.0.1)")
    parser.add_argument("--port", help="HTTP port (8000)")
    parser.add_argument("--grpc-port", help="gRPC port (8001), 0 for none")
    parser.add_argument("--accelerator", choices=ACCELERATORS, help="where the primary lane's device comes from (auto)")
    parser.add_argument("--deadline-ms", help="time a request gets that brings no deadline (30000)")
    parser.add_argument("--drain-s-max", help="time from SIGTERM to the end, of which requests get most (10)")
    parser.add_argument("--run-s-max", help="time that a batch may run before its lane is replaced (60)")
    parser.add_argument("--load-s-max", help="time that a load may take before its lane is replaced (120)")
    parser.add_argument("--queue-rows-max", help="rows that may wait, more are refused with 429 (4096)")
    parser.add_argument("--queue-bytes-max", help="bytes of requests at a time, more are refused with 429 (256 MiB)")
    parser.add_argument("--lane-memory-bytes-max", help="memory of a lane for weights and executables (the device's)")
    parser.add_argument("--gather-ms", help="time that requests wait for company that makes them cheaper (0)")
    parser.add_argument("--priority-aging-ms", help="waiting that a level of priority is worth (1000)")
    parser.add_argument("--model-weights", help="shares of a lane's time, such as digits=2,embed=0.5 (1 each)")
    parser.add_argument(
        "--compile", choices=COMPILING, help="compile what the store lacks, beside what is served (auto)"
    )
    parser.add_argument("--compile-s-max", help="time that one compile gets (600)")
    parser.add_argument("--compile-cpu-s-max", help="processor time that one compile gets (1200)")
    parser.add_argument("--compile-memory-bytes-max", help="private memory that one compile gets (8 GiB), 0 for any")
    parser.add_argument("--body-bytes-max", help="largest request body (64 MiB)")
    parser.add_argument("--traces-kept-max", help="traces that the local ring keeps (512)")
    parser.add_argument("--otlp-endpoint", help="base URL of an OTLP/HTTP collector, - for standard output")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 after an orderly drain."""
    entered_ns = time.time_ns()
    gc.disable()  # what a start imports stays; `run_server` enables it
    open_standard_streams()
    settings = read_settings(Settings, vars(arguments), os.environ)
    if settings.grpc_port:
        with bound(settings.host, settings.grpc_port, "grpc_port"):
            pass  # gRPC binds it itself, but later: a taken port is to be told now
    with bound(settings.host, settings.port, "port") as http_socket:
        preload = preload_for(settings.accelerator)
        with contextlib.ExitStack() as stack:
            early = EarlyDigests.begin(settings)
            stack.callback(early.close)
            zygote.import_shared()
            forked = Zygote.fork_off(preload, zygote.main)  # from here on the two import side by side
            stack.callback(forked.close)
            configure_logging()  # of this process: a lane has none
            return _serve(settings, forked, preload, http_socket, entered_ns, early)


def open_standard_streams() -> None:
    """Give what was started without standard streams /dev/null: a socket or an arena would take their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            assert opened == descriptor
            os.set_inheritable(opened, True)


def preload_for(accelerator: str) -> Preload:
    """Whether lanes need jax: only it knows the plugins of accelerators."""
    if accelerator == "auto":
        # Where jax itself looks; its third place, entry points, would cost more than importing jaxlib does.
        found = importlib.util.find_spec("jax_plugins") or importlib.util.find_spec("libtpu")
        return "jax" if found else "jaxlib"
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


def _serve(
    settings: Settings,
    forked: Zygote,
    preload: Preload,
    http_socket: socket.socket,
    entered_ns: int,
    early: EarlyDigests,
) -> int:
    from cache.errors import CacheError
    from cache.opening import open_store

    try:
        store = open_store(settings, read_through=True)
    except ValueError as error:
        raise SettingError(str(error)) from None
    except CacheError as error:
        raise StoreFailed(f"store {settings.store!r}: {error}") from error
    forked.fork_ahead("jax" if preload == "jax" else "jaxlib")

    import asyncio

    import uvloop

    from warmpool.cold_start import ColdStart, process_start_ns
    from warmpool.instance import Instance
    from warmpool.messages import Stage
    from warmpool.server import run_server

    start_ns = process_start_ns()
    cold_start = ColdStart("cold start", start_ns)
    imported_ns = time.time_ns()
    cold_start.add("front", [Stage("interpreter", start_ns, entered_ns), Stage("import", entered_ns, imported_ns)])

    async def run() -> None:
        cold_start.add("front", [Stage("event loop", imported_ns, time.time_ns())])
        await run_server(Instance(settings, store, forked, preload, cold_start, early), http_socket)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except ExceptionGroup as failures:
        known, unknown = failures.split((WarmpoolError, CacheError))
        if known is None or unknown is not None:
            raise
        first = known.exceptions[0]
        raise StoreFailed(f"store {settings.store!r}: {first}") if isinstance(first, CacheError) else first from None
    return 0


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
