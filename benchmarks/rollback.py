"""Rollbacks: from the decision to the last request that an instance still gives to the version that was taken back.

Two instances share a store, and each gives half of its requests to a canary. Then the canary is taken back as an
instance that decides so takes it back, and it is seen when each of them was last asked in vain. The instance that
decides needs none of that time: it knows. Every answer is checked. The store is a folder, and then a bucket that has
the same: of a real server of GCS's protocol, each request of which is held back as in `benchmarks.gcs_latency`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from google.cloud.storage import Client

from benchmarks.connection import Connection, poll
from benchmarks.figures import Figure, Report, Target
from benchmarks.gameday.gcs_server import GcsServer, client_of
from benchmarks.gcs_latency import DELAY_S, delayed
from benchmarks.questions import Question, contract
from benchmarks.server import Server, console_script, free_port, warmpool
from benchmarks.status import STATUS, settled
from benchmarks.stores import PUBLISH_S_MAX, Folders, signing_key
from cache.gcs_store import GcsStore
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from warmpool import wire
from warmpool.manifest import RolloutSpec
from warmpool.rollout.changes import Start, started
from warmpool.rollout.decisions import Decision, roll_back
from warmpool.rollout.record import record_path
from warmpool.rollout.serving_change import change_serving, read_serving

INSTANCES = 2
START_S_MAX = 180.0
WATCH_S = 2.0  # after the decision
TARGET = Target("at most", 1.0)
BUCKET = "bench"
MODEL, FILE = "options", "examples/options/model.py"
VERSIONS = ("one", "other")


@dataclass(frozen=True, slots=True)
class Rollback:
    """Seconds since the decision: until the store has it, until the last instance gives the canary nothing more."""

    stored_s: float
    reached_s: float
    answers: int


@dataclass(slots=True)
class Caller:
    """Asks one instance all the time; `last_s` is when it last asked and was answered by the canary."""

    server: Server
    question: Question
    canary: str
    last_s: float = 0.0
    answers: int = 0
    failure: Exception | None = None
    seen: threading.Event = field(default_factory=threading.Event)
    ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """In a thread of its own, until `ending`."""
        request = self.question.v2_request()
        try:
            with Connection(self.server.port) as connection:
                while not self.ending.is_set():
                    asked_s = time.perf_counter()
                    response = connection.exchange(request)
                    self.question.check_v2(response, self.server.name)
                    self.answers += 1
                    if wire.decode_response(response.body, response.json_bytes).model_version == self.canary:
                        self.last_s = asked_s
                        self.seen.set()
                    time.sleep(0.001)
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            self.failure = error
            self.seen.set()


def rollback(store: SignedStore, servers: list[Server], question: Question) -> Rollback:
    """Start a rollout, wait until every instance gives the canary requests, take it back and watch."""
    stable = read_serving(store, MODEL)[0].stable
    canary = next(version for version in VERSIONS if version != stable)
    spec = RolloutSpec(started_s=time.time(), by_hand=True)
    start = Start(share=0.5, mirror=0.0, spec=spec)
    _, serving = change_serving(store, MODEL, lambda now: started(now, canary, start, time.time()))
    callers = [Caller(server, question, canary) for server in servers]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    for caller in callers:
        if not caller.seen.wait(START_S_MAX):
            raise TimeoutError(f"{caller.server.name} gave the canary nothing within {START_S_MAX:.0f} s")
    decided_s = time.perf_counter()
    roll_back(store, Decision(MODEL, serving, record_path(MODEL, spec), time.time(), "measured", {}))
    stored_s = time.perf_counter()
    time.sleep(WATCH_S)
    for caller, thread in zip(callers, threads, strict=True):
        caller.ending.set()
        thread.join()
        if caller.failure is not None:
            raise caller.failure
    reached_s = max(0.0, *(caller.last_s - decided_s for caller in callers))
    return Rollback(stored_s - decided_s, reached_s, sum(caller.answers for caller in callers))


def run(folders: Folders, rounds: int, say: Callable[[str], None]) -> Report:
    """Measure, on two instances of each kind of store."""
    path = folders.store(MODEL, FILE)
    key = str(signing_key(path))
    for version in VERSIONS:
        command = [console_script("warmpool"), "publish", FILE, "--store", str(path), "--signing-key", key]
        subprocess.run([*command, "--version", version], check=True, timeout=PUBLISH_S_MAX, stdout=sys.stderr)
    store = open_store(StoreSettings(store=str(path), signing_key=key))
    with contextlib.ExitStack() as stack:
        instances = [stack.enter_context(warmpool(path, folders.log(name))) for name in names("folder")]
        in_folder = measured(store, instances, rounds, lambda text: say(f"folder: {text}"))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(GcsServer(free_port()))
        far = stack.enter_context(delayed(server.port))
        filled(server.client(), LocalStore(path))
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        environment = {"STORAGE_EMULATOR_HOST": far, "XDG_CACHE_HOME": cache}
        instances = [
            stack.enter_context(warmpool(path, folders.log(name), f"gs://{BUCKET}", environment))
            for name in names("bucket")
        ]
        store = SignedStore(GcsStore(BUCKET, client=client_of(far)), store.trust, store.signer)
        in_bucket = measured(store, instances, rounds, lambda text: say(f"bucket: {text}"))
    figures = [*figures_of("folder", in_folder), *figures_of("bucket", in_bucket)]
    raw = {"folder": [asdict(one) for one in in_folder], "bucket": [asdict(one) for one in in_bucket]}
    title = f"rollback, options, two instances on a folder, and on a bucket {DELAY_S * 1000:.0f} ms away"
    return Report(title, figures, raw)


def names(kind: str) -> list[str]:
    """Of the instances on a kind of store."""
    return [f"warmpool-rollback-{kind}-{number}" for number in range(INSTANCES)]


def filled(client: Client, source: LocalStore) -> None:
    """Let a bucket have what a folder has."""
    client.create_bucket(BUCKET)
    bucket = GcsStore(BUCKET, client=client)
    for entry in source.entries(""):
        bucket.put(entry.path, source.get(entry.path))


def measured(store: SignedStore, servers: list[Server], rounds: int, say: Callable[[str], None]) -> list[Rollback]:
    """So many rollbacks, once every instance is warm."""
    for server in servers:
        poll(server.port, STATUS, START_S_MAX, settled)
    found: list[Rollback] = []
    for number in range(1, rounds + 1):
        one = rollback(store, servers, contract())
        found.append(one)
        say(f"rollback {number}/{rounds}: {one.reached_s:.3f} s on {INSTANCES} instances, {one.answers} answers")
    return found


def figures_of(kind: str, found: list[Rollback]) -> list[Figure]:
    """What was measured on a kind of store."""
    reached = f"{kind}: decision to the last request that any instance gives the canary"
    return [
        Figure(f"{kind}: decision to its being in the store", "s", tuple(one.stored_s for one in found)),
        Figure(reached, "s", tuple(one.reached_s for one in found), TARGET),
    ]
