"""A server under measurement: a fresh process, timed from its exec, its log kept, ended by its pid."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.loopback import HOST

STOP_S_MAX = 30.0
_ROOT = Path(__file__).resolve().parents[1]
# What a caller has set for his own purposes must not change what is measured.
_DROPPED = ("OTEL_", "WARMPOOL_", "JAX_", "XLA_", "PYTHON")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `exec_s` is when it was executed, by `time.perf_counter`."""

    name: str
    port: int
    pid: int
    exec_s: float


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    name: str, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
) -> Iterator[Server]:
    """A server for the duration of a block, ended in order at its end.

    Raises:
        RuntimeError: It ended before the block did, or not in order; the message has the end of its log.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
    with log.open("wb") as stream:
        exec_s = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=_ROOT, env={**kept, **environment}, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    try:
        yield Server(name, port, process.pid, exec_s)
    except BaseException as error:
        error.add_note(f"{name}'s log ends: {_tail(log)}")
        raise
    finally:
        ended_early = process.poll() is not None
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if ended_early or process.returncode not in {0, -15}:
        raise RuntimeError(f"{name} ended with status {process.returncode}; its log ends: {_tail(log)}")


@contextlib.contextmanager
def warmpool(
    store: Path, log: Path, bucket: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """`warmpool serve` as it is by default, gRPC and signatures included, on a store or a bucket that has the same."""
    port = free_port()
    trusted = ["--trusted-keys", str(store.parent / "keys")]
    ports = ["--host", HOST, "--port", str(port), "--grpc-port", str(free_port())]
    command = [console_script("warmpool"), "serve", "--store", bucket or str(store), *trusted, *ports]
    with running("warmpool", command, port, log, environment or {}) as server:
        yield server


@contextlib.contextmanager
def peer(model: str, cache: Path, log: Path, buckets: Sequence[tuple[int, int]] = ()) -> Iterator[Server]:
    """The hand-written server around a model ("flax" or "plain"); with buckets, it warms them before it listens."""
    port = free_port()
    # Imported, not run as a script, so that its bytecode is cached like that of an installed command.
    code = "import sys; from benchmarks.peer_fastapi import main; main(sys.argv[1:])"
    warmed = [f"{batch}x{seq}" for batch, seq in buckets]
    options = ["--model", model, "--port", str(port), "--cache", str(cache)]
    command = [sys.executable, "-c", code, *options, "--buckets", *warmed]
    # Without this, jax looks for accelerators first.
    with running("FastAPI + jit", command, port, log, {"JAX_PLATFORMS": "cpu"}) as server:
        yield server


def console_script(name: str) -> str:
    """The path of a command that is installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] or "(empty)"
