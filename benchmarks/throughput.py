"""Throughput of a real instance over the best that its executables can do: many clients, requests of mixed lengths.

The best is a bare process that runs the same requests in the best offline batches of the same executables, padded
beforehand, and does nothing else. Clients wait for their answers and then send the next request, all in one process
beside the server's; on a machine of few cores they, and the front, take their time from the executables. Rounds of both
alternate. Every answer is compared, outside the clock, with what the bare process computed in another batch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bare_start import BareStart
from benchmarks.connection import Response, poll
from benchmarks.cpu_time import children_cpu_s, cpu_s
from benchmarks.figures import Figure, Report, Target, percentile, ratios
from benchmarks.offline_batches import OfflineBatches
from benchmarks.processors import confine, device_and_rest
from benchmarks.questions import Question, padded_sentence, picture, v2_outputs
from benchmarks.server import Server, console_script, warmpool
from benchmarks.simulator.generator import generate
from benchmarks.status import STATUS, lanes, settled
from benchmarks.stores import Folders, model_in
from cache.executable import Runtime

START_S_MAX = 180.0
LOAD_S_MAX = 300.0
TARGET = Target("at least", 0.9)
WARM_UP = 0.15  # the share of answers, at either end, that are not counted
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Subject:
    """What clients send: `requests` are inputs, `output` names the answer; `connections` are tried one after the other.

    The best throughput counts whose 99 % of answers come within `p99_s_max`. `file`: published instead of the example.
    `apart`: lanes, and the bare process, have a processor of their own (`benchmarks.processors`). Without that,
    there is no `target` for a request whose arithmetic costs little (ADR 14).
    """

    title: str
    model: str
    warm: Question
    output: str
    requests: list[dict[str, NDArray[Any]]]
    connections: tuple[int, ...]
    p99_s_max: float
    target: Target | None
    file: str = ""
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """One run of the clients after one of the bare process.

    Attributes:
        connections: Of the clients.
        per_s: Answers a second in the middle of the run.
        p99_s: The 99th percentile of their latencies.
        bare_per_s: Requests a second of the bare process.
        cpu_ms: CPU time of a request by process, "bare" among them.
    """

    connections: int
    per_s: float
    p99_s: float
    bare_per_s: float
    cpu_ms: dict[str, float]


def subjects() -> list[Subject]:
    """A real network with mixed lengths; and one whose rows take less than a request costs the front, three sizes."""
    generator = np.random.default_rng(0)
    lengths = generate("bursty", 400, 0).within(256).lengths

    def text(length: int) -> dict[str, NDArray[Any]]:
        ids = generator.integers(1000, 30000, (1, length)).astype(np.int32)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    def images(rows: int) -> dict[str, NDArray[Any]]:
        return {"image": generator.integers(0, 17, (rows, 8, 8)).astype(np.float32)}

    texts = [text(length) for length in lengths]
    embed = [
        Subject(title, "embed", padded_sentence(16), "output", texts, (32, 64), limit_s, TARGET, apart=apart)
        for title, limit_s, apart in (
            ("embed, mixed lengths", 1.0, False),
            ("embed, mixed lengths, the lane's processor its own", 2.0, True),
        )
    ]
    digits = [
        Subject(title, "digits", picture(), "probabilities", [images(rows) for _ in range(count)], tried, 0.1, None)
        for title, rows, count, tried in (
            ("digits, 1 row", 1, 2000, (16, 32)),
            ("digits, 32 rows", 32, 500, (8, 16)),
        )
    ]
    many = [images(256) for _ in range(300)]
    large = [
        Subject(
            title, "digits", picture(), "probabilities", many, (4, 8), 0.1, target, "benchmarks/digits_plan.py", apart
        )
        for title, target, apart in (
            ("digits, 256 rows", None, False),
            ("digits, 256 rows, the lane's processor its own", TARGET, True),
        )
    ]
    return [*embed, *digits, *large]


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure.

    Raises:
        WrongAnswer: An answer is not what the bare process computed.
    """
    train_digits()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    fingerprint = Runtime.open("jaxlib").fingerprint()
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for subject in subjects():
        device, rest = device_and_rest()
        if subject.apart and not rest:
            say(f"throughput: {subject.title}: left out, there is one processor only")
            continue
        store = folders.store(subject.model, subject.file)
        served = model_in(store, subject.model).method(None)
        assert served is not None
        start = BareStart.prepare(folders.root / f"bare-{store.name}", store, subject.warm, fingerprint)
        with (
            OfflineBatches(folders.root / f"bare-{store.name}", start, served, subject.requests) as bare,
            warmpool(store, folders.log("warmpool-throughput")) as server,
        ):
            response, _ = poll(server.port, STATUS, START_S_MAX, settled)
            if subject.apart:
                confine(server.pid, rest)
                for pid in (bare.pid, *(lane["pid"] for lane in lanes(response))):
                    confine(pid, device)
            clients = Clients(folders.root / f"load-{store.name}", server, subject, rest if subject.apart else set())
            loaded: list[list[Loaded]] = []
            for number in range(1, rounds + 1):
                loaded.append([clients.load(connections, bare) for connections in subject.connections])
                best = best_of(loaded[-1], subject.p99_s_max)
                times = f"bare {best.bare_per_s:.0f} requests/s, HTTP {best.per_s:.0f}, p99 {best.p99_s * 1e3:.0f} ms"
                say(f"throughput {number}/{rounds}: {subject.title}: {times}")
        figures += figures_of(subject, loaded)
        raw[subject.title] = {"offline": bare.describe(), "loaded": [list(map(asdict, each)) for each in loaded]}
    return Report("throughput, clients that wait for their answers", figures, raw)


def best_of(loaded: Sequence[Loaded], p99_s_max: float) -> Loaded:
    """The most answers a second within the limit; where none is within it, the one that comes nearest."""
    within = [one for one in loaded if one.p99_s <= p99_s_max]
    return max(within, key=lambda one: one.per_s) if within else min(loaded, key=lambda one: one.p99_s)


def figures_of(subject: Subject, loaded: Sequence[Sequence[Loaded]]) -> list[Figure]:
    """The best number of connections within the limit, by the median of the rounds, and what it gives in each."""
    columns = list(zip(*loaded, strict=True))
    medians = [
        Loaded(
            column[0].connections,
            statistics.median(one.per_s for one in column),
            statistics.median(one.p99_s for one in column),
            0.0,
            {},
        )
        for column in columns
    ]
    best = columns[medians.index(best_of(medians, subject.p99_s_max))]
    per_s = [one.per_s for one in best]
    bare_per_s = [one.bare_per_s for one in best]
    title = subject.title
    limit = f"within a p99 of {subject.p99_s_max * 1e3:.0f} ms"
    return [
        Figure(f"{title}: best offline batching, bare", "/s", tuple(bare_per_s)),
        Figure(f"{title}: over HTTP, {best[0].connections} connections", "/s", tuple(per_s)),
        Figure(f"{title}: p99", "ms", tuple(one.p99_s * 1e3 for one in best)),
        ratios(f"{title}: over best offline {limit}", per_s, bare_per_s, subject.target),
        *(
            Figure(f"  CPU time a request: {name}", "ms", tuple(one.cpu_ms[name] for one in best))
            for name in best[0].cpu_ms
        ),
        Figure("  of all cores' time what front and clients leave", "x", tuple(map(left, best))),
    ]


def left(loaded: Loaded) -> float:
    """The ratio to expect where every core is busy, and lanes need no more than the bare process."""
    bare_ms = loaded.cpu_ms["bare"]
    return bare_ms / (bare_ms + loaded.cpu_ms["front"] + loaded.cpu_ms["clients"])


class Clients:
    """The clients' process for one subject; what it sends is written down once."""

    def __init__(self, folder: Path, server: Server, subject: Subject, processors: Collection[int] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._subject = subject
        self._server = server
        self._plan_file, self._out = folder / "plan.json", folder / "responses"
        sent = [Question(subject.model, inputs, np.empty(0, np.float32)).v2_request() for inputs in subject.requests]
        requests = folder / "requests"
        requests.write_bytes(b"".join(sent))
        self._plan: dict[str, Any] = {
            "port": server.port,
            "requests": str(requests),
            "sizes": list(map(len, sent)),
            "out": str(self._out),
            "processors": list(processors),  # that it may use; none for all
        }

    def load(self, connections: int, bare: OfflineBatches) -> Loaded:
        """Have every request answered by the bare process, and then over so many connections. Raises WrongAnswer."""
        count = len(self._subject.requests)
        bare_s, bare_cpu_s, expected = bare.run()
        plan = self._plan | {"connections": connections, "answers": round(count * (1 + 2 * WARM_UP))}
        self._plan_file.write_text(json.dumps(plan), encoding="utf-8")
        pid = self._server.pid
        before_s = cpu_s(pid), children_cpu_s(pid)
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.load_client", str(self._plan_file)],
            cwd=_ROOT,
            check=True,
            timeout=LOAD_S_MAX,
            stdout=subprocess.PIPE,
        )
        told = json.loads(ended.stdout)
        used_s = {
            "front": cpu_s(pid) - before_s[0],
            "lanes": children_cpu_s(pid) - before_s[1],
            "clients": told["cpu_s"],
        }
        self._check(told, expected)
        first = round(count * WARM_UP)
        counted = told["done"][first : first + count + 1]
        took_s = counted[-1]["answered_s"] - counted[0]["answered_s"]
        latencies_s = [one["answered_s"] - one["sent_s"] for one in counted]
        cpu_ms = {name: one_s * 1e3 / len(told["done"]) for name, one_s in used_s.items()}
        cpu_ms["bare"] = bare_cpu_s * 1e3 / count
        return Loaded(connections, count / took_s, percentile(latencies_s, 0.99), count / bare_s, cpu_ms)

    def _check(self, told: dict[str, Any], expected: Sequence[NDArray[Any]]) -> None:
        data = self._out.read_bytes()
        at = 0
        for one, size in zip(told["done"], told["sizes"], strict=True):
            head, _, body = data[at : at + size].partition(b"\r\n\r\n")
            at += size
            response = Response(int(head[9:12]), head + b"\r\n", body)
            number = one["number"] % len(expected)
            output = v2_outputs(response)[0][self._subject.output]
            question = Question(self._subject.model, {}, expected[number])
            question.check(output, f"{self._server.name}, request {number}")


def train_digits() -> None:
    """Digits has no weights before it is trained."""
    from examples.digits.files import checkpoint

    if not checkpoint().exists():
        command = [console_script("python"), "-m", "examples.digits.train"]
        subprocess.run(command, cwd=_ROOT, check=True, timeout=LOAD_S_MAX, stdout=sys.stderr)
