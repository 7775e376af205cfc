"""Versions that come and go again and again leave nothing behind: no memory, no descriptor, no process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.connection import Connection, http_request
from cache.local_store import LocalStore
from tests.instance_process import Reply, alive, children_of, descendants, mapped_bytes, own_bytes, wait_until
from tests.warmpool.line_versions import MODEL, VERSIONS, publish, serve
from tests.warmpool.lines_instance import Lines, checked, line_request, planned
from warmpool import wire

SPARE = 10  # descriptors that are open for a moment; one a cycle would be 75, or more
MIB = 1 << 20
PROCESSES_MIN = 4  # the zygote, two lanes, and the process that waits


class Footing(NamedTuple):
    """What the front, the zygote and the lanes have, by process, weights that are mapped among it.

    Files are open while they are read: the least of many counts.
    """

    bytes: dict[str, int]
    descriptors: dict[str, int]
    children: int


def footing(instance: Lines) -> Footing:
    status = instance.status()
    pids = {"front": instance.process.pid, "zygote": status["zygote"]["pid"]}
    pids |= {lane["name"]: lane["pid"] for lane in status["lanes"]}
    return Footing(
        {name: own_bytes(pid) + mapped_bytes(pid) for name, pid in pids.items()},
        {name: min(len([*Path(f"/proc/{pid}/fd").iterdir()]) for _ in range(50)) for name, pid in pids.items()},
        len(children_of(instance.process.pid)) + len(children_of(status["zygote"]["pid"])),
    )


def ask_line(connection: Connection, x: np.ndarray, version: str) -> Reply:
    body, headers = line_request(x)
    response = connection.exchange(http_request("POST", f"/v2/models/{MODEL}/versions/{version}/infer", body, headers))
    return Reply(response.status, {wire.HEADER_LENGTH: str(response.json_bytes)}, response.body)


class Cycling:
    """Versions come, answer requests of changing shapes, and go."""

    def __init__(self, store: LocalStore, instance: Lines, requests: int) -> None:
        self._store, self._instance, self._requests = store, instance, requests
        self._rng = np.random.default_rng(0)
        self._versions = cycle(["2", "3", "4"])
        self.answered = 0

    def once(self) -> None:
        version = next(self._versions)
        instance = self._instance
        self._served(canary=version)
        wait_until(lambda: instance.version(version)[0] == "warm")
        with Connection(instance.port) as connection:  # one that stayed open would be one a cycle
            self._ask(connection, version)
        self._served()
        wait_until(lambda: instance.version(version) == ("", ""))
        wait_until(
            lambda: {lane["name"]: lane["warm"] for lane in instance.status()["lanes"]} == planned(VERSIONS["1"])
        )

    def _ask(self, connection: Connection, version: str) -> None:
        for number in range(self._requests):
            asked = (version, "1")[number % 2]
            line = VERSIONS[asked]
            rows, width = (int(self._rng.integers(1, most + 1)) for most in (line.batch[-1], line.width[-1]))
            x = self._rng.integers(-99, 99, (rows, width)).astype(np.float32)
            assert checked(ask_line(connection, x, asked), x) == asked
            self.answered += 1

    def _served(self, **fields: Any) -> None:
        serve(self._store, "1", **fields)
        assert self._instance.post("/v1/store/changed", b"").status == 200


@contextlib.contextmanager
def killed_in_the_end(store: LocalStore, tmp_path: Path) -> Iterator[Lines]:
    """A warm instance that nobody ends: its front is killed, and nothing that it started stays."""
    instance = Lines(store, tmp_path)
    pids: set[int] = set()
    try:
        instance.wait_warm()
        yield instance
        pids = wait_until(lambda: len(found := descendants(instance.process.pid)) >= PROCESSES_MIN and found)
    finally:
        instance.process.kill()
        instance.process.wait()
    wait_until(lambda: not any(map(alive, pids)))


def cycled(store: LocalStore, tmp_path: Path, cycles: int, requests: int) -> tuple[Footing, Footing]:
    """What there is after a quarter of the cycles, and after all of them."""
    with killed_in_the_end(store, tmp_path) as instance:
        cycling = Cycling(store, instance, requests)
        for _ in range(cycles // 4):
            cycling.once()
        before = footing(instance)
        for _ in range(cycles - cycles // 4):
            cycling.once()
        after = footing(instance)
        wait_until(lambda: all(map(alive, descendants(instance.process.pid))))
        status = instance.status()
        assert [lane["compiles"] for lane in status["lanes"]] == [0, 0]
        assert sum(lane["restarts"] for lane in status["lanes"]) == 0
        assert cycling.answered == cycles * requests
        assert list(status["models"]) == [MODEL]
        assert {one["bucket"]["width"] for lane in status["lanes"] for one in lane["costs"]} <= {*VERSIONS["1"].width}
    return before, after


@pytest.mark.slow
def test_a_hundred_versions_and_ten_thousand_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """A version has 1 MiB of weights: were they left behind once a cycle, that would be 75 MiB."""
    store = LocalStore(tmp_path / "store")
    for version, line in VERSIONS.items():
        publish(store, version, replace(line, weights=(MIB // 4,)))
    serve(store, "1")
    before, after = cycled(store, tmp_path, cycles=100, requests=100)
    assert all(count - before.descriptors[name] < SPARE for name, count in after.descriptors.items()), (before, after)
    assert after.children - before.children < SPARE
    for name, size in after.bytes.items():
        assert size - before.bytes[name] < 16 * MIB, name
