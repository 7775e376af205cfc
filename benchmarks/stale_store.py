"""The first answer of an instance whose whole store is stale, over the time that compiling its executables takes.

The store has the three examples, *embed* with sixty-four shapes; the instance runs with a flag of XLA that makes it
another kind of machine, as another jaxlib would. So nothing in the store may be loaded, and the instance compiles
beside itself. Callers ask for each model from the start, and wait; the first answer that any of them gets counts, and
every answer is checked; no lane has compiled. Beside it, a process compiles the very same buckets one after the other,
out of programs that are traced already.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.churned_plan import right
from benchmarks.compile_all import compile_all_s
from benchmarks.connection import Connection
from benchmarks.figures import Figure, Report, Target, ratios
from benchmarks.questions import Question, WrongAnswer, contract, padded_sentence, picture, v2_outputs
from benchmarks.server import Server, console_script, free_port, running
from benchmarks.status import status
from benchmarks.stores import Folders, signing_key
from benchmarks.throughput import train_digits
from examples.loopback import HOST

MODELS = {
    "options": "",
    "digits": "",
    "embed": "benchmarks/sixty_four.py",
}  # by file
STALE = {"XLA_FLAGS": "--xla_cpu_enable_fast_min_max=false"}  # changes the fingerprint, and next to nothing else
ANSWER_S_MAX = 300.0


@dataclass(slots=True)
class Caller:
    """Asks for one model until it is answered; `took_s` is since the instance's exec."""

    server: Server
    question: Question
    took_s: float = 0.0
    refusals: int = 0
    failure: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        request = self.question.v2_request()
        until_s = time.perf_counter() + ANSWER_S_MAX
        while time.perf_counter() < until_s:
            try:
                with Connection(self.server.port) as connection:
                    response = connection.exchange(request)
            except OSError:  # it does not listen yet
                time.sleep(0.01)
                continue
            if response.status == 503:
                self.refusals += 1
                time.sleep(0.1)
                continue
            try:
                outputs, _ = v2_outputs(response)
                self.question.check(outputs.get("probabilities", next(iter(outputs.values()))), self.server.name)
                self.took_s = time.perf_counter() - self.server.exec_s
            except Exception as error:  # noqa: BLE001  raised where it is waited for
                self.failure = error
            return
        self.failure = TimeoutError(f"{self.question.model} was not answered within {ANSWER_S_MAX:.0f} s")


def questions() -> dict[str, Question]:
    """One for each model."""
    image = picture().inputs["image"]
    digits = Question("digits", {"image": image}, right(image))
    return {"options": contract(), "digits": digits, "embed": padded_sentence(16)}


def published(folders: Folders) -> Path:
    """One store with all of them."""
    train_digits()
    paths = [folders.store(name, file) for name, file in MODELS.items()]
    whole = folders.root / "stale-whole"
    shutil.rmtree(whole, ignore_errors=True)
    for path in paths:
        shutil.copytree(path, whole, dirs_exist_ok=True)
    return whole


def first_answers(whole: Path, folders: Folders, asked: dict[str, Question]) -> dict[str, float]:
    """Seconds from the exec of an instance to the first answer of each model. Raises WrongAnswer, TimeoutError."""
    used = folders.root / "stale"
    shutil.rmtree(used, ignore_errors=True)
    shutil.copytree(whole, used)
    port = free_port()
    command = [console_script("warmpool"), "serve", "--store", str(used), "--signing-key", str(signing_key(used))]
    command += ["--host", HOST, "--port", str(port), "--grpc-port", "0", "--deadline-ms", "60000"]
    with running("warmpool", command, port, folders.log("warmpool-stale"), STALE) as server:
        callers = {name: Caller(server, question) for name, question in asked.items()}
        for caller in callers.values():
            caller.thread.join()
        document = status(server)
    for caller in callers.values():
        if caller.failure is not None:
            raise caller.failure
    if not document["compiling"]["made"] or any(lane["compiles"] for lane in document["lanes"]):
        raise WrongAnswer(f"the store was not stale, or a lane has compiled: {document}")
    return {name: caller.took_s for name, caller in callers.items()}


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure.

    Raises:
        WrongAnswer: An answer is not right.
    """
    whole = published(folders)
    asked = questions()
    measured: list[dict[str, float]] = []
    compiled: list[float] = []
    count = 0
    for number in range(1, rounds + 1):
        measured.append(first_answers(whole, folders, asked))
        took_s, count = compile_all_s(whole, tuple(MODELS), STALE)
        compiled.append(took_s)
        first = min(measured[-1].values())
        say(f"stale store {number}/{rounds}: first answer {first:.2f} s, {count} executables compiled {took_s:.1f} s")
    firsts = [min(one.values()) for one in measured]
    figures = [
        Figure("exec to the first answer of all", "s", tuple(firsts)),
        *(Figure(f"exec to the first answer of {name}", "s", tuple(one[name] for one in measured)) for name in MODELS),
        Figure(f"compiling all {count} executables, one after the other", "s", tuple(compiled)),
        ratios("first answer over compiling everything", firsts, compiled, Target("at most", 0.1)),
    ]
    raw = {"first_answers_s": measured, "compiled_s": compiled, "executables": count}
    return Report("a store that is stale as a whole: options, digits, embed with 64 shapes", figures, raw)
