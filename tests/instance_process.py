"""An instance as it is deployed: `warmpool serve` in a process of its own, asked over HTTP on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port
from tests.tiny import METHODS
from warmpool import wire
from warmpool.arena import dtype_of
from warmpool.datatypes import DATATYPES, OF_DTYPE

WAIT_S_MAX = 150.0  # twice as long as an instance may leave what it misses alone
REQUEST_S_MAX = 90.0
POLL_S, POLL_S_MAX = 0.005, 0.05


def wait_until(condition: Callable[[], Any], wait_s_max: float = WAIT_S_MAX) -> Any:
    """Poll what another process brings about; its first true value."""
    deadline_s = time.monotonic() + wait_s_max
    rest_s = POLL_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"waited {wait_s_max} s in vain"
        time.sleep(rest_s)
        rest_s = min(1.25 * rest_s, POLL_S_MAX)  # what takes long needs the processor that a look takes
    return value


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def records_of(file: Path) -> list[dict[str, Any]]:
    """The lines of JSON in a file that may be written meanwhile: a line that does not end yet is none."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def children_of(pid: int) -> list[int]:
    """The processes whose parent this is, those that wait to be reaped among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and those that they did, and so on."""
    found = set(children_of(pid))
    return found.union(*map(descendants, found))


def own_bytes(pid: int) -> int:
    """What a process has in memory with no file behind it."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) << 10


def mapped_bytes(pid: int) -> int:
    """How much of files with weights a process maps, whatever the system keeps of that in memory."""
    found = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, _, path = line.partition(" ")
        if "/weights/" in path:
            first, last = (int(address, 16) for address in addresses.split("-"))
            found += last - first
    return found


# Python runs this at its start: zygotes (the first is a fork) then wait for a file, and what comes before can be seen.
_GATE = """
import os, sys, time
def wait():
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.005)
fork = os.fork
def gated():
    pid = fork()
    main = sys._getframe(1).f_locals.get("main")
    if pid == 0 and getattr(main, "__module__", "") == "warmpool.zygote":
        wait()
    return pid
os.fork = gated
if "warmpool.zygote" in sys.orig_argv:
    wait()
"""


def zygote_gate(folder: Path) -> tuple[Path, dict[str, str]]:
    """A file that zygotes wait for, and the environment that makes them."""
    (folder / "sitecustomize.py").write_text(_GATE)
    return folder / "gate", {"PYTHONPATH": str(folder), "GATE": str(folder / "gate")}


class Reply(NamedTuple):
    """An HTTP response, read whole."""

    status: int
    headers: Any  # a mapping that does not mind upper and lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Inferred(NamedTuple):
    """Arrays by output name, and the V2 parameters that say how they were served."""

    outputs: dict[str, np.ndarray]
    parameters: dict[str, Any]


class InstanceProcess:
    """A running instance.

    Attributes:
        command: What runs `warmpool`; a test may have another one.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "tests.patient_instance")

    def __init__(self, store: Path | str, log_file: Path, *flags: str, **environment: str) -> None:
        self.port = free_port()
        self.log_file = log_file
        self.started_s = time.monotonic()
        self.pids: set[int] = set()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_"))}
        command = [*self.command, "serve", "--store", str(store), "--port", str(self.port)]
        trust = () if "--trusted-keys" in flags or "--signing-key" in flags else ("--allow-unsigned",)
        patience = () if "--run-s-max" in flags else ("--run-s-max", "600")
        compiling = () if "--compile" in flags else ("--compile", "off")  # a test that wants it says so
        with log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--grpc-port", "0", *trust, *patience, *compiling, *flags],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=kept | environment,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            assert self.process.wait(WAIT_S_MAX) == 0, self.log
            wait_until(lambda: not any(map(alive, self.pids)))
        finally:
            self.process.kill()
            self.process.wait()

    @property
    def log(self) -> str:
        """What it wrote to standard error so far."""
        return self.log_file.read_text(errors="replace")

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S_MAX)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, content: Any, headers: Mapping[str, str] = {}) -> Reply:
        """POST bytes as they are, anything else as JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", path, body, headers)

    def infer(self, name: str, *, binary: bool = True, headers: Mapping[str, str] = {}, **inputs: Any) -> Inferred:
        """V2 inference of one of the tiny model's methods, which has to succeed."""
        reply = self.infer_reply(f"tiny:{name}", tensors(name, inputs), binary=binary, headers=headers)
        assert reply.status == 200, reply.body
        return inferred(reply)

    def infer_reply(
        self,
        model: str,
        given: Mapping[str, wire.Tensor],
        *,
        binary: bool = True,
        headers: Mapping[str, str] = {},
    ) -> Reply:
        """V2 inference with these wire tensors, whatever comes of it."""
        request = wire.InferRequest(inputs=dict(given), parameters={"binary_data_output": binary})
        body, length = wire.encode_request(request, binary=binary)
        lengths = {} if length is None else {wire.HEADER_LENGTH: str(length)}
        return self.post(f"/v2/models/{model}/infer", body, {**lengths, **headers})

    def status(self) -> dict[str, Any]:
        """The status document; remembers the processes it names, to see them gone at the end."""
        document: dict[str, Any] = self.get("/v1/status").json()
        self.pids |= {pid for pid in (document["zygote"]["pid"], *(lane["pid"] for lane in document["lanes"])) if pid}
        return document

    def lane(self, name: str) -> dict[str, Any]:
        lanes: list[dict[str, Any]] = self.status()["lanes"]
        return next((lane for lane in lanes if lane["name"] == name), {})

    def gauge(self, name: str, **labels: str) -> float:
        """The value of one sample of /metrics; 0 for a counter that has not counted yet."""
        families = text_string_to_metric_families(self.get("/metrics").body.decode())
        samples = (sample for family in families for sample in family.samples)
        return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), 0.0)

    def answers(self, path: str) -> int:
        """The status of a GET, 0 while nothing listens."""
        try:
            return self.get(path).status
        except OSError:
            return 0

    def wait_ready(self) -> None:
        wait_until(lambda: self.process.poll() is not None or self.answers("/v2/health/ready") == 200)
        assert self.process.poll() is None, self.log

    def wait_warm(self) -> None:
        """Wait until both lanes have tried everything they are to hold."""
        self.wait_ready()
        wait_until(lambda: all(lane["state"] == "warm" for lane in self.status()["lanes"]))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and give the exit status."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S_MAX)


@contextlib.contextmanager
def serving(store: Path | str, log_file: Path, *flags: str, **environment: str) -> Iterator[InstanceProcess]:
    """A warm instance, ended at the end."""
    with InstanceProcess(store, log_file, *flags, **environment) as instance:
        instance.wait_warm()
        yield instance


def tensors(name: str, inputs: Mapping[str, Any]) -> dict[str, wire.Tensor]:
    """Wire tensors of those inputs of a tiny method that are given, made by numpy."""
    made: dict[str, wire.Tensor] = {}
    for spec in (spec for spec in METHODS[name].inputs if spec.name in inputs):
        array = np.asarray(inputs[spec.name], dtype_of(spec.dtype))
        made[spec.name] = wire.Tensor(OF_DTYPE[spec.dtype].name, array.shape, array.tobytes())
    return made


def inferred(reply: Reply) -> Inferred:
    """The content of a V2 response."""
    response = wire.decode_response(reply.body, reply.headers.get(wire.HEADER_LENGTH))
    outputs = {
        name: np.frombuffer(tensor.data, dtype_of(DATATYPES[tensor.datatype].dtype)).reshape(tensor.shape)
        for name, tensor in response.outputs.items()
    }
    return Inferred(outputs, response.parameters)
