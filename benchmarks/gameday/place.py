"""Where a game day takes place: a bucket behind a network, a disk, and an instance that serves from both.

The instance is as it is deployed with a bucket: what it reads is kept on its disk, what is missing it compiles itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL

from benchmarks.gameday.disk import Disk, small_disk
from benchmarks.gameday.fates import Fates, OddClock
from benchmarks.gameday.fault_proxy import FaultProxy, Weather
from benchmarks.gameday.gcs_server import GcsServer
from benchmarks.gameday.instance import Instance, kill, until
from benchmarks.gameday.readiness import minimum_sets
from benchmarks.server import console_script, free_port, running
from benchmarks.stores import Folders, opened, signing_key
from cache.gcs_store import GcsStore
from cache.local_store import LocalStore
from examples.loopback import HOST
from warmpool.manifest import ExecutableSpec, executable_path
from warmpool.survey import survey

RUN_S_MAX = 3.0
COMPILE_S_MAX = 20.0
START_S_MAX = 120.0
FILL_S_MAX = 300.0
_BUCKET = "gameday"


class Place:
    """All of it.

    Attributes:
        instance: Serves.
        disk: Under its copies of the store, and what its compiles write.
        network: Between it and its bucket.
        weather: Of that.
        fates: Of its compiles.
        clock: Of all its processes.
        shelf: The store that it serves from.
    """

    def __init__(  # each is a part of its own
        self,
        instance: Instance,
        disk: Disk,
        network: FaultProxy,
        fates: Fates,
        clock: OddClock,
        shelf: Shelf,
        copies: Path,
    ) -> None:
        self.instance = instance
        self.disk = disk
        self.network = network
        self.weather = network.script = Weather()
        self.fates = fates
        self.clock = clock
        self.shelf = shelf
        self._copies = copies

    def wound(self, specs: Sequence[ExecutableSpec], change: Callable[[bytes], bytes] | None = None) -> None:
        """Remove executables from the store, or change their bytes there; no copy is left here."""
        for path in (executable_path(spec.key) for spec in specs):
            if change is None:
                self.shelf.store.delete(path)
            else:
                self.shelf.store.put(path, change(self.shelf.store.get(path)))
        self.forget_copies(specs)

    def forget_copies(self, specs: Sequence[ExecutableSpec]) -> None:
        """Remove the copies of executables that the instance keeps."""
        for spec in specs:
            for copy in self._copies.rglob(spec.key):
                copy.unlink(missing_ok=True)

    def fill(self) -> None:
        """What somebody does who has seen to what compiles failed of. Raises CalledProcessError."""
        command = [console_script("warmpool"), "cache", "fill", "--retry-failed", *self.shelf.flags]
        environment = os.environ | self.shelf.environment
        subprocess.run(command, check=True, timeout=FILL_S_MAX, env=environment, stdout=DEVNULL, stderr=DEVNULL)

    def kill(self, name: str) -> None:
        """Kill a lane by its name."""
        kill(self.instance.lane_pid(name), signal.SIGKILL)

    def whole(self) -> bool:
        """Whether it is ready, its lanes hold all that is planned, nothing is to be made, and the store has it all."""
        status = self.instance.status()
        lanes = all(
            lane["state"] == "warm" and lane["warm"] == lane["planned"] > 0 and not lane["cold"] and not lane["missing"]
            for lane in status["lanes"]
        )
        compiling = status["compiling"]
        quiet = compiling["state"] == "idle" and not compiling["waiting"] and not compiling["failures"]
        here = bool(status["ready"] and status["zygote"]["pid"] and lanes and quiet)
        return here and {spec.key for spec in self.shelf.listed} <= set(self.shelf.store.names("executables"))


class Shelf:
    """A store with a model, seen from where there is no network before it.

    Args:
        store: Empty.
        uri: What an instance calls it.
        published: The folder of a store that is copied into it.
        url: Of the server that has it, "" for none.

    Attributes:
        store: Its objects.
        flags: Of a command that may write to it.
        environment: Of such a command.
        listed: The executables that are to be in it.
        minimum: What an instance has to hold of it to be ready.
    """

    def __init__(self, store: GcsStore | LocalStore, uri: str, published: Path, url: str = "") -> None:
        self.store = store
        self.flags = ("--store", uri, "--signing-key", str(signing_key(published)))
        self.environment = {"STORAGE_EMULATOR_HOST": url} if url else {}
        source = LocalStore(published)
        for entry in source.entries(""):
            store.put(entry.path, source.get(entry.path))
        found = survey(opened(published))
        self.minimum = minimum_sets(found)
        served = [version for version in found.versions if version.stable]
        targets = [target for version in served for target in version.targets.values()]
        self.listed = [spec for target in targets for spec in target.executables]


@contextlib.contextmanager
def place(folders: Folders, root: Path, *, near: bool = False) -> Iterator[Place]:
    """A place in a new folder, whose instance is warm.

    Args:
        folders: Where the store is that is copied, and the log.
        root: An empty folder.
        near: Whether the store is a folder, on the same disk, and no bucket behind a network.

    Raises:
        TimeoutError: It did not become warm.
        RuntimeError: It ended before the block did.
    """
    published = folders.store("gameday", "benchmarks/gameday/model.py")
    folder, log = root / "disk", folders.log("gameday-near" if near else "gameday")
    fates, clock = Fates(root / "fates"), OddClock(root / "clock")
    instances: list[Instance] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(GcsServer(free_port()))
        proxy = stack.enter_context(FaultProxy(server))
        disk = stack.enter_context(small_disk(folder, lambda: set[int]().union(*(one.pids() for one in instances))))
        if near:
            shelf = Shelf(LocalStore(folder / "store"), str(folder / "store"), published)
        else:
            client = server.client()
            client.create_bucket(_BUCKET)
            shelf = Shelf(GcsStore(_BUCKET, client=client), f"gs://{_BUCKET}", published, server.url)
        (folder / "scratch").mkdir()
        port = free_port()
        command = [console_script("warmpool"), "serve", *shelf.flags, "--host", HOST, "--port", str(port)]
        command += ["--grpc-port", "0", "--cache-folder", str(folder / "copies")]
        command += ["--run-s-max", str(RUN_S_MAX), "--compile-s-max", str(COMPILE_S_MAX)]
        environment = {"STORAGE_EMULATOR_HOST": proxy.url, "TMPDIR": str(folder / "scratch")}
        environment |= fates.environment | clock.environment
        process = stack.enter_context(running("warmpool", command, port, log, environment))
        instance = Instance(port, process.pid, log)
        instances.append(instance)
        until(lambda: instance.answers("/v2/health/ready") == 200, START_S_MAX, "the instance is ready")
        found = Place(instance, disk, proxy, fates, clock, shelf, folder / "copies")
        until(found.whole, START_S_MAX, "all is warm")
        yield found
