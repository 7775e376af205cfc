"""From a container's start to the first correct answer, with a warm store, over the bare process.

The instance's image as it is deployed: a root file system that cannot be written, no rights, nobody's user. Executables
and weights come out of a bucket, a server of GCS's protocol on this machine, into an empty folder in memory every time;
so they do for the bare process, which is `warmpool serve` of this checkout. The publisher's image filled the store, and
what that compiled fits both.

A container's start is that of one which was created before, as whoever runs containers does while nobody waits; from
`podman run`, which creates it first and needs most of its time for that, is shown beside it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks.connection import poll
from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.gameday.gcs_server import GcsServer
from benchmarks.questions import Question, contract
from benchmarks.server import Server, console_script, free_port, running
from benchmarks.stores import Folders
from cache.signing import Signer
from examples.loopback import HOST
from infra.images import podman

START_S_MAX = 180.0
TARGET = Target("at most", 1.3)
STORE = "gs://bench/store"
KEYS = "/keys"
MEMORY = "/dev/shm"  # noqa: S108  # a folder of its own below it
MODEL = "examples/options/model.py"
NOBODY = 65532


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds to the first correct answer, in the order of their measurement; `process_s` is part of `started_s`."""

    load_average: float
    started_s: float
    process_s: float
    bare_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """What every round starts from."""

    folders: Folders
    bucket: str
    keys: Path
    instance: str
    question: Question

    @property
    def environment(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.bucket}

    def round(self) -> Round:
        load_average = os.getloadavg()[0]
        started_s, process_s = self.started()
        bare_s = self.bare()
        return Round(load_average, started_s, process_s, bare_s, self.run())

    def bare(self) -> float:
        """The process, with an empty folder in memory for what it fetches, as a container's /tmp is."""
        with tempfile.TemporaryDirectory(dir=MEMORY) as copies:
            command = [console_script("warmpool"), "serve", "--trusted-keys", str(self.keys), "--cache-folder", copies]
            return self._first_answer("bare", command, self.environment)

    def run(self) -> float:
        """A container that `podman run` makes and starts."""
        return self._first_answer("podman-run", self._container(), podman.environment())

    def started(self) -> tuple[float, float]:
        """A container that was made before; and of that what came after its process had begun."""
        name, port = f"bench-{uuid4().hex[:12]}", free_port()
        words = self._container() + self._arguments(port)
        podman.run(*(["podman", "create", f"--name={name}"] + [one for one in words[2:] if one != "--rm"]))
        start = ["podman", "start", "--attach", name]
        try:
            with self._answered("podman-start", start, podman.environment(), port) as (server, answered_s):
                began_s = began(int(podman.run("podman", "inspect", "--format={{.State.Pid}}", name)))
            return answered_s - server.exec_s, answered_s - began_s
        finally:
            podman.run("podman", "rm", "--force", name)

    def _container(self) -> list[str]:
        """The command of a container, but for where it listens."""
        trusted = ("--trusted-keys", KEYS)
        return podman.run_command(
            self.instance, "serve", *trusted, variables=self.environment, mounts={self.keys: KEYS}
        )

    def _arguments(self, port: int) -> list[str]:
        return ["--store", STORE, "--host", HOST, "--port", str(port), "--grpc-port", str(free_port())]

    def _first_answer(self, name: str, command: list[str], environment: Mapping[str, str]) -> float:
        port = free_port()
        with self._answered(name, command + self._arguments(port), environment, port) as (server, answered_s):
            return answered_s - server.exec_s

    @contextlib.contextmanager
    def _answered(
        self, name: str, command: list[str], environment: Mapping[str, str], port: int
    ) -> Iterator[tuple[Server, float]]:
        """A server that answered correctly, and when."""
        log = self.folders.log(f"container-start-{name}")
        with running(name, command, port, log, environment) as server:
            request = self.question.v2_request()
            response, answered_s = poll(port, request, START_S_MAX, lambda response: response.status == 200)
            self.question.check_v2(response, name)
            yield server, answered_s


def began(pid: int) -> float:
    """When a process began, by `time.perf_counter`; the kernel counts in hundredths of a second."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.perf_counter() - age_s


@contextlib.contextmanager
def prepared(folders: Folders) -> Iterator[Place]:
    """The images, built; a bucket that the publisher filled, for as long as the block runs.

    Raises:
        RuntimeError: A tool is missing, or this Python has executables of its own.
    """
    if lacking := podman.missing():
        raise RuntimeError(f"containers need {', '.join(lacking)}: apt-get install {' '.join(podman.TOOLS)}, as root")
    podman.make_base()
    instance, publisher = podman.build("instance"), podman.build("publisher")
    folders.root.mkdir(parents=True, exist_ok=True)
    keys = Path(tempfile.mkdtemp(dir=folders.root))
    keys.chmod(0o755)
    key = keys / "publisher.pem"
    Signer.generate().write(key)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, keys)
        server = stack.enter_context(GcsServer(free_port()))
        server.client().create_bucket("bench")
        variables = {"STORAGE_EMULATOR_HOST": server.url}
        words = ("publish", MODEL, "--store", STORE, "--signing-key")
        os.chown(key, NOBODY, NOBODY)
        podman.run(
            *podman.run_command(publisher, *words, f"{KEYS}/{key.name}", variables=variables, mounts={keys: KEYS})
        )
        here = subprocess.run(
            [console_script("warmpool"), *words, str(key)], env=os.environ | variables, cwd=podman.ROOT, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        if "nothing compiled" not in here.stdout + here.stderr:
            raise RuntimeError(f"what the image compiled does not fit here, with Python {sys.version.split()[0]}")
        yield Place(folders, server.url, keys, instance, contract())


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure; a round before the first fills the page cache.

    Raises:
        RuntimeError: The images cannot be built or run here; the message says why.
        WrongAnswer: Somebody answered with something else than the reference.
    """
    with prepared(folders) as place:
        place.round()
        say("container start: a round before the first")
        measured: list[Round] = []
        for number in range(1, rounds + 1):
            measured.append(one := place.round())
            say(
                f"container start {number}/{rounds}: started {one.started_s:.3f} s, bare {one.bare_s:.3f} s, "
                f"podman run {one.run_s:.3f} s"
            )
    started, process, bare, ran = (
        [getattr(one, name) for one in measured] for name in ("started_s", "process_s", "bare_s", "run_s")
    )
    figures = [
        Figure("container start to first answer", "s", tuple(started)),
        Figure("exec of the bare process to first answer", "s", tuple(bare)),
        Figure("podman run to first answer", "s", tuple(ran)),
        ratios("container start over the bare process", started, bare, TARGET),
        ratios("of that, since the container's process began", process, bare),
        ratios("podman run over the bare process", ran, bare),
    ]
    return Report(
        "start of a container, options, from a bucket", figures, {"rounds": [asdict(one) for one in measured]}
    )
