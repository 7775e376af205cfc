"""Sixty-four artifacts from a bucket that is 20 ms away, side by side and in turn.

A real client and a real server (fake-gcs-server), with a proxy between them, in a process of its own, that holds each
request back for 20 ms; setting up a connection costs no more than it does on this machine. Every artifact is signed,
kept in a new local folder, read from there, and verified.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.gameday.gcs_server import GcsServer
from benchmarks.server import free_port
from benchmarks.stores import Folders
from cache.artifact import Header, pack, unpack
from cache.fetching import DOWNLOADS_PARALLEL, File, fetch, fetch_all
from cache.gcs_store import GcsStore
from cache.ingredients import digest_ingredients
from cache.read_through import ReadThroughStore
from cache.signed_store import SignedStore
from cache.signing import Signer, Trust

ARTIFACTS = 64
ARTIFACT_BYTES = 170_000  # as large as an executable of the examples
DELAY_S = 0.020
TARGET = Target("at least", 8)
BUCKET = "bench"


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:  # noqa: ARG001  # nothing is kept
    """Measure both ways, one after the other in each round."""
    signer = Signer.generate()
    trust = Trust.of([signer.public])
    with GcsServer(free_port()) as server, delayed(server.port) as url:
        direct = server.client()
        direct.create_bucket(BUCKET)
        keys = _publish(SignedStore(GcsStore(BUCKET, client=direct), trust, signer))
        in_turn: list[float] = []
        side_by_side: list[float] = []
        with _emulated(url):
            for number in range(1, rounds + 1):
                in_turn.append(_in_turn(keys, trust))
                side_by_side.append(_side_by_side(keys, trust))
                say(f"far bucket {number}/{rounds}: {in_turn[-1]:.2f} s in turn, {side_by_side[-1]:.3f} s side by side")
    return Report(
        f"{ARTIFACTS} artifacts of {ARTIFACT_BYTES // 1000} kB from a bucket {DELAY_S * 1000:.0f} ms away",
        [
            Figure("one after the other", "s", tuple(in_turn)),
            Figure(f"{DOWNLOADS_PARALLEL} at a time", "s", tuple(side_by_side)),
            ratios("one after the other over side by side", in_turn, side_by_side, TARGET),
        ],
        {"in_turn_s": in_turn, "side_by_side_s": side_by_side},
    )


@contextlib.contextmanager
def _emulated(url: str) -> Iterator[None]:
    """Google's client asks this server, for the duration of a block."""
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    os.environ["STORAGE_EMULATOR_HOST"] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ["STORAGE_EMULATOR_HOST"]
        else:
            os.environ["STORAGE_EMULATOR_HOST"] = before


def _publish(store: SignedStore) -> list[str]:
    keys = []
    for number in range(ARTIFACTS):
        ingredients = {"number": str(number)}
        keys.append(digest_ingredients(ingredients))
        header = Header(key=keys[-1], ingredients=ingredients)
        store.put(f"executables/{keys[-1]}", pack(header, os.urandom(ARTIFACT_BYTES)))
    return keys


def _in_turn(keys: list[str], trust: Trust) -> float:
    return _timed(keys, trust, lambda store, paths: {path: fetch(store, path) for path in paths})


def _side_by_side(keys: list[str], trust: Trust) -> float:
    return _timed(keys, trust, fetch_all)


def _timed(keys: list[str], trust: Trust, fetched: Callable[[SignedStore, list[str]], dict[str, File]]) -> float:
    """Seconds from a client without a connection and an empty folder to the last artifact verified."""
    with tempfile.TemporaryDirectory() as folder:
        store = SignedStore(ReadThroughStore(GcsStore(BUCKET), Path(folder), 1 << 30), trust)
        start_s = time.perf_counter()
        files = fetched(store, [f"executables/{key}" for key in keys])
        for key, file in zip(keys, files.values(), strict=True):
            assert isinstance(file, Path), file
            _, payload = unpack(file.read_bytes(), key=key, trust=trust)
            assert len(payload) == ARTIFACT_BYTES
        return time.perf_counter() - start_s


@contextlib.contextmanager
def delayed(port: int) -> Iterator[str]:
    """The address of a proxy before a server."""
    command = [sys.executable, "-m", "benchmarks.gcs_latency", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def _proxy(port: int) -> None:
    """Hold back every request; what fits into one read is one, as downloads do."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        with contextlib.suppress(ConnectionError):
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, back, DELAY_S))
                group.create_task(_pass_on(there, writer, 0.0))

    server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=1 << 20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    while data := await reader.read(1 << 20):
        if delay_s:
            await asyncio.sleep(delay_s)
        writer.write(data)
        await writer.drain()
    writer.close()


if __name__ == "__main__":
    uvloop.run(_proxy(int(sys.argv[1])))
