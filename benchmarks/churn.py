"""The slowest of a thousand requests while executables are missing and a version comes, over that when all is there.

An instance begins on a store that has four of twenty-four buckets of a version, so twenty shapes are met by a larger
one until theirs is compiled, beside the instance. A second version with another program, of which nothing is compiled,
becomes the stable one meanwhile. Requests of all shapes come at a fixed rate until everything is compiled and the
second version has taken over; and then as many once more. Every answer is compared with plain JAX's of the version that
it names, and no lane has compiled. The target is for the rounds' own ratios, and for that of their requests together,
of which there have to be a hundred thousand in churn.

And once more while another process fills a store that the instance knows nothing of, in the same class of the
scheduler, but without `warmpool.compiling.pulse`: what compiles cost an instance that takes nothing up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.churned_plan import ROWS_MAX, right
from benchmarks.connection import Response, poll
from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.phase import Phase, p999_of_all_s
from benchmarks.questions import Question, WrongAnswer, v2_outputs
from benchmarks.server import Server, console_script, free_port, running
from benchmarks.status import STATUS, status
from benchmarks.stores import PUBLISH_S_MAX, Folders, signing_key
from benchmarks.throughput import train_digits
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from examples.loopback import HOST
from warmpool import wire
from warmpool.compiling.worker_process import NICE
from warmpool.manifest import Serving, encode, executable_path, serving_path
from warmpool.manifest import Target as Targeted

MODEL = "digits"
VERSIONS = {"one": 1.0, "two": 2.0}  # temperatures
KEPT = (1, 8, 16, 24)  # rows of the buckets that are there from the start
EVERY_S, CONNECTIONS = 0.002, 32
VERSION_AFTER_S = 5.0
CHURN_S_MAX = 600.0
REQUESTS_MIN = 100_000
READY_S_MAX = 120.0
_ROOT = Path(__file__).resolve().parents[1]


def prepared(folders: Folders) -> Path:
    """The store as an instance of each round finds it."""
    train_digits()
    whole, reduced = folders.root / "churn-whole", folders.root / "churn"
    key = signing_key(whole)
    if not key.exists():
        from cache.signing import Signer

        Signer.generate().write(key)
    for version, more in (("one", ()), ("two", ("--no-serve",))):
        command = [console_script("warmpool"), "publish", f"benchmarks/churned_{version}.py", "--store", str(whole)]
        command += ["--signing-key", str(key), "--version", version, *more]
        subprocess.run(command, cwd=_ROOT, check=True, timeout=PUBLISH_S_MAX, stdout=sys.stderr)
    shutil.rmtree(reduced, ignore_errors=True)
    shutil.copytree(whole, reduced)
    store = opened(reduced, key)
    for version in VERSIONS:
        for entry in list(store.entries(f"models/{MODEL}/{version}/targets")):
            target = msgspec.json.decode(store.get(entry.path), type=Targeted)
            kept = [spec for spec in target.executables if version == "one" and spec.bucket["batch"] in KEPT]
            for spec in target.executables:
                if spec not in kept:
                    store.delete(executable_path(spec.key))
            if kept:
                store.put(entry.path, encode(msgspec.structs.replace(target, executables=tuple(kept))))
            else:
                store.delete(entry.path)
    return reduced


def opened(store: Path, key: Path) -> SignedStore:
    """A store that what is put into is signed by this key."""
    return open_store(StoreSettings(store=str(store), signing_key=str(key)))


class Traffic:
    """Requests of every number of rows, and what each version answers to them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        images = np.random.default_rng(0).integers(0, 17, (ROWS_MAX, 8, 8)).astype(np.float32)
        self._right = {version: right(images, temperature) for version, temperature in VERSIONS.items()}
        order = np.random.default_rng(1).permutation(np.tile(np.arange(1, ROWS_MAX + 1), 8))
        self.rows: list[int] = order.tolist()
        sent = [Question(MODEL, {"image": images[:rows]}, self._right["one"]).v2_request() for rows in self.rows]
        (folder / "requests").write_bytes(b"".join(sent))
        self._plan = {"requests": str(folder / "requests"), "sizes": list(map(len, sent)), "out": str(folder / "out")}

    def begin(self, server: Server) -> subprocess.Popen[str]:
        """Clients that send until their standard input ends."""
        plan = self._plan | {"port": server.port, "connections": CONNECTIONS, "every_s": EVERY_S}
        (self._folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.paced_client", str(self._folder / "plan.json")]
        return subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self, clients: subprocess.Popen[str]) -> Phase:
        """What they saw. Raises WrongAnswer."""
        told, _ = clients.communicate("")
        if clients.returncode:
            raise RuntimeError(f"the clients ended with status {clients.returncode}; they said why above")
        found = json.loads(told)
        data, at = (self._folder / "out").read_bytes(), 0
        steps: dict[str, int] = {}
        for one, size in zip(found["done"], found["sizes"], strict=True):
            step = self._check(data[at : at + size], one["number"])
            steps[step] = steps.get(step, 0) + 1
            at += size
        return Phase.of(found["done"], steps)

    def _check(self, answer: bytes, number: int) -> str:
        head, _, body = answer.partition(b"\r\n\r\n")
        response = Response(int(head[9:12]), head + b"\r\n", body)
        outputs, parameters = v2_outputs(response)
        version = wire.decode_response(response.body, response.json_bytes).model_version
        rows = self.rows[number % len(self.rows)]
        Question(MODEL, {}, self._right[version][:rows]).check(outputs["probabilities"], f"version {version}")
        return str(parameters["step"])


def is_over(document: Any) -> bool:
    """Whether everything is compiled, and the second version has taken over."""
    compiling = document["compiling"]
    if compiling.get("failures"):
        raise RuntimeError(f"something cannot be compiled: {compiling['failures']}")
    served = document["models"][MODEL]["version"] == "two"
    return bool(served and compiling["state"] == "idle" and not compiling["waiting"])


@dataclass(frozen=True, slots=True)
class Round:
    """Churn, as long without, and compiles beside an instance that takes nothing up."""

    churn: Phase
    steady: Phase
    floor: Phase


def fresh(store: Path, name: str) -> Path:
    """A copy of a store."""
    copy = store.with_name(name)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    return copy


def filled(store: Path, key: Path, server: Server) -> None:
    """Fill a store as a compile service would, with the time that is left over."""
    versions = [f"{MODEL}@{version}" for version in VERSIONS]
    command = [console_script("warmpool"), "cache", "fill", *versions, "--store", str(store), "--signing-key", str(key)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=sys.stderr, stderr=subprocess.DEVNULL) as filling:
        os.setpriority(os.PRIO_PROCESS, filling.pid, NICE)
        os.sched_setscheduler(filling.pid, os.SCHED_IDLE, os.sched_param(0))
        end_s = time.monotonic() + CHURN_S_MAX
        while filling.poll() is None:
            if time.monotonic() > end_s:
                filling.kill()
                raise TimeoutError(f"not all was compiled within {CHURN_S_MAX:.0f} s")
            status(server)
            time.sleep(1.0)
    if filling.returncode:
        raise RuntimeError(f"warmpool cache fill ended with status {filling.returncode}")


def one_round(store: Path, key: Path, traffic: Traffic) -> Round:
    """All three, of one instance."""
    used, other = fresh(store, "churn-used"), fresh(store, "churn-other")
    port = free_port()
    command = [console_script("warmpool"), "serve", "--store", str(used), "--signing-key", str(key)]
    command += ["--host", HOST, "--port", str(port), "--grpc-port", "0"]
    with running("warmpool", command, port, Folders(store.parent).log("warmpool-churn"), {}) as server:
        poll(server.port, STATUS, READY_S_MAX, lambda response: bool(msgspec.json.decode(response.body)["ready"]))
        clients = traffic.begin(server)
        begin_s = time.monotonic()
        changed = False
        while not is_over(document := status(server)) or not changed:
            if not changed and time.monotonic() - begin_s > VERSION_AFTER_S:
                changed = True
                opened(used, key).put(serving_path(MODEL), encode(Serving(stable="two", previous="one")))
            if time.monotonic() - begin_s > CHURN_S_MAX:
                raise TimeoutError(f"not all was compiled within {CHURN_S_MAX:.0f} s: {document['compiling']}")
            time.sleep(1.0)
        churn = traffic.end(clients)
        missing = len(VERSIONS) * ROWS_MAX - len(KEPT)
        if document["compiling"]["made"] < missing or not churn.steps.get("larger"):
            raise WrongAnswer(f"that was no churn: {document['compiling']}, {churn.steps}")
        clients = traffic.begin(server)
        end_s = time.monotonic() + churn.seconds
        while time.monotonic() < end_s:
            status(server)
            time.sleep(1.0)
        steady = traffic.end(clients)
        clients = traffic.begin(server)
        filled(other, key, server)
        floor = traffic.end(clients)
        if compiles := [lane["compiles"] for lane in status(server)["lanes"] if lane["compiles"]]:
            raise WrongAnswer(f"lanes have compiled: {compiles}")
    return Round(churn, steady, floor)


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure.

    Raises:
        WrongAnswer: An answer is not plain JAX's, or a lane has compiled.
    """
    store = prepared(folders)
    key = signing_key(folders.root / "churn-whole")
    traffic = Traffic(folders.root / "churn-traffic")
    measured: list[Round] = []
    for number in range(1, rounds + 1):
        one = one_round(store, key, traffic)
        measured.append(one)
        times = f"{one.churn.p999_s * 1e3:.1f} ms in {one.churn.seconds:.0f} s of churn, "
        times += f"{one.steady.p999_s * 1e3:.1f} ms after, {one.floor.p999_s * 1e3:.1f} ms beside other compiles"
        say(f"churn {number}/{rounds}: p99.9 {times}, {one.churn.requests + one.steady.requests} requests")
    title = "churn: twenty unseen shapes and a new version"
    return Report(title, figures_of(measured), {"rounds": [*map(asdict, measured)]})


def figures_of(measured: Sequence[Round]) -> list[Figure]:
    """The ratio, and what it is made of."""
    churn, steady, floor = zip(*((one.churn, one.steady, one.floor) for one in measured), strict=True)
    figures = [Figure("churn", "s", tuple(one.seconds for one in churn))]
    for name, phases in (("in churn", churn), ("steady", steady), ("beside other compiles", floor)):
        figures.append(Figure(f"requests {name}", "", tuple(float(one.requests) for one in phases)))
        for share in ("p50", "p99", "p999"):
            title = share.replace("p999", "p99.9")
            figures.append(Figure(f"{title} {name}", "ms", tuple(getattr(one, f"{share}_s") * 1e3 for one in phases)))
        late_ms = tuple(one.late_p999_s * 1e3 for one in phases)
        figures.append(Figure(f"p99.9 of how late they were sent {name}", "ms", late_ms))
    under = [one.p999_s for one in steady]
    figures.append(ratios("p99.9 beside other compiles over steady", [one.p999_s for one in floor], under))
    target, enough = Target("at most", 1.25), Target("at least", REQUESTS_MIN)
    figures.append(ratios("p99.9 in churn over steady", [one.p999_s for one in churn], under, target))
    figures.append(Figure("requests in churn, in all", "", (float(sum(one.requests for one in churn)),), enough))
    together = [p999_of_all_s(phases) for phases in (churn, steady)]
    figures.append(Figure("p99.9 of all rounds together in churn", "ms", (together[0] * 1e3,)))
    figures.append(Figure("p99.9 of all rounds together steady", "ms", (together[1] * 1e3,)))
    figures.append(ratios("p99.9 of all rounds together in churn over steady", together[:1], together[1:], target))
    return figures
