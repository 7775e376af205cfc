"""Several publishes share the work: nothing is compiled twice, nobody waits for ever, a failure is met once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache import failures
from cache.errors import NotStored
from cache.failures import Failure
from cache.lease import TTL_S_MAX, Contender
from cache.local_store import LocalStore
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from cache.single_flight import PAUSE_S_MAX
from tests.warmpool.dead_leases import shorten
from tests.warmpool.publishing.held_workers import HeldWorkers
from warmpool.errors import ProofFailed, PublishError
from warmpool.forking import WorkerFailed
from warmpool.manifest import ProofSpec, Target, encode, executable_path
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.claims import Begun, Claims, share
from warmpool.publishing.entries import Entry
from warmpool.publishing.machines import Limits
from warmpool.publishing.publish import Options, Summary, publish

REPOSITORY = Path(__file__).parents[3]
WAIT_S_MAX = 600.0

MODEL = """
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=16, sizes=(1, 2, 4, 8, 16), batch=True)
seq = Dim("seq", max=2, sizes=(2,))

def predict(params, x):
    return x.max(axis=1)

x = Tensor("float32", (batch, seq), pad=-9.0, low=-9.0)
model = Model(name="shared", methods={"predict": predict}, inputs={"x": x})
"""
# Five buckets, and the CPU lane's own of the first and the last. One publish begins five at a time: it leaves one.
COUNT = 7

# Every process that runs it waits until all of them have come so far.
MEETING = """
import os, time
from pathlib import Path

here = Path(os.environ["MEETING"])
(here / str(os.getpid())).touch()
while len(list(here.iterdir())) < int(os.environ["MEETING_OF"]):
    time.sleep(0.005)
"""

SLOW = """
import jax.numpy as jnp
from warmpool.model import Model, Tensor

def predict(params, x):
    for step in range(STEPS):
        x = jnp.sin(x @ (x.T + step)) @ x
    return x

model = Model(name="slow", methods={"predict": predict}, inputs={"x": Tensor("float32", (4, 4))})
"""

LEAKING = """
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=2, sizes=(1,), batch=True)
seq = Dim("seq", max=4, sizes=(4,))
model = Model(
    name="leaking",
    methods={"predict": lambda params, x: x.mean(axis=1)},
    inputs={"x": Tensor("float32", (batch, seq))},
)
"""


class Silent:
    """A progress that remembers its steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.said: list[str] = []
        self.left = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def expect(self, steps: int) -> None:
        self.left += steps

    def step(self, text: str) -> None:
        self.steps.append(text)
        self.left -= 1


# Claims, with entries that are nothing but their keys.


class Publisher:
    """One who has claims in a store, and stores a word as what it made."""

    def __init__(self, folder: Path, name: str, *, wall_s_max: float = 600.0, retry_failed: bool = False) -> None:
        self.store = SignedStore(LocalStore(folder), ANYONE)
        self.name = name
        self.made: list[str] = []
        self.took: list[str] = []
        self.said: list[str] = []
        self.claims = Claims(
            self.store,
            self.found,
            fingerprint="f00",
            limits=Limits(wall_s_max=wall_s_max),
            retry_failed=retry_failed,
            say=self.said.append,
        )

    def found(self, entry: Entry) -> Path | None:
        with contextlib.suppress(NotStored):
            return self.store.local_path(f"weights/{entry.key}")
        return None

    def claim(self, key: str) -> Path | bool:
        return self.claims.claim(entry_of(key), f"the bucket {key}")

    def until(self, key: str) -> Path | bool:
        """What a claim becomes when it is no longer others' to make."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while (claimed := self.claim(key)) is False:
            assert time.monotonic() < deadline_s
            self.claims.wait()
        return claimed

    def begin(self, key: str) -> Begun:
        claimed = self.claim(key)
        if isinstance(claimed, Path):
            self.took.append(key)
            return Begun.DONE
        return Begun.HERE if claimed else Begun.NOT_YET

    def finish(self, key: str) -> None:
        self.store.put(f"weights/{key}", self.name.encode())
        self.made.append(key)
        self.claims.settle(key, made=True)

    def run(self, keys: list[str]) -> None:
        with self.claims:
            share(keys, self.begin, self.finish, self.claims.wait, begun_max=2)


Makes = Callable[..., Publisher]


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Makes]:
    """Makes one; its claims are given up when the test is over."""
    with contextlib.ExitStack() as stack:

        def make(name: str, **options: Any) -> Publisher:
            made = Publisher(tmp_path, name, **options)
            stack.enter_context(made.claims)
            return made

        yield make


def entry_of(key: str) -> Entry:
    return Entry("predict", Bucket({"batch": 1}, minimum=False, ladder=False), key, {})


def failed_with(reason: str, detail: str) -> PublishError:
    """As a child's failure arrives."""
    error = PublishError("it failed")
    error.__cause__ = WorkerFailed("worker:compile_bucket", reason, detail)
    return error


def test_what_one_has_claimed_another_has_not_until_it_is_there(publisher: Makes, tmp_path: Path) -> None:
    one, two = publisher("one"), publisher("two")
    assert one.claim("a") is True
    assert one.claim("a") is True
    assert two.claim("a") is False
    assert two.claim("b") is True
    two.finish("b")
    one.finish("a")
    assert one.until("b") == tmp_path / "weights" / "b"
    assert two.until("a") == tmp_path / "weights" / "a"
    assert one.store.names("leases") == []


def test_claims_that_are_left_are_given_up(publisher: Makes) -> None:
    one, two = publisher("one"), publisher("two")

    def interrupted() -> None:
        with one.claims:
            assert one.claim("a")
            assert one.claim("b")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert two.claim("a") is True
    assert two.claim("b") is True


@pytest.mark.parametrize("turns", range(3))
def test_two_who_want_the_same_in_opposite_orders_share_it_and_neither_waits_for_ever(
    publisher: Makes, turns: int
) -> None:
    keys = [f"key-{number}" for number in range(12)]
    publishers = [publisher("one"), publisher("two"), publisher("three")]
    orders = [keys, keys[::-1], keys[6:] + keys[:6]]
    threads = [
        threading.Thread(target=publisher.run, args=(order,), daemon=True)
        for publisher, order in zip(publishers, orders, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
        assert not thread.is_alive(), "they wait for each other"
    made = [key for publisher in publishers for key in publisher.made]
    assert sorted(made) == sorted(keys)
    assert all(sorted(publisher.made + publisher.took) == sorted(keys) for publisher in publishers)


def test_no_more_is_begun_than_was_allowed_and_what_others_do_comes_last() -> None:
    begun: set[str] = set()
    most: list[int] = []
    events: list[str] = []
    others = {"b"}

    def begin(key: str) -> Begun:
        if key in others:
            return Begun.NOT_YET
        begun.add(key)
        most.append(len(begun))
        return Begun.HERE

    def finish(key: str) -> None:
        begun.remove(key)
        events.append(key)

    def wait() -> None:
        assert not begun
        events.append("waited")
        others.clear()

    share(["a", "b", "c", "d", "e"], begin, finish, wait, begun_max=2)
    assert max(most) == 2
    assert events == ["a", "c", "d", "e", "waited", "b"]


def test_who_waits_says_once_whom_for(publisher: Makes) -> None:
    one, two = publisher("one"), publisher("two")
    one.claim("a")
    for _ in range(3):
        assert two.claim("a") is False
        two.claims.wait()
    (said,) = two.said
    assert said.startswith("waiting for ")
    assert f":{os.getpid()}, which makes what is missing too" in said


def test_who_hears_nothing_for_too_long_stops_and_says_whom_it_waited_for(publisher: Makes) -> None:
    one, two = publisher("one"), publisher("two", wall_s_max=0.05)
    one.claim("a")
    with pytest.raises(PublishError, match=rf"others \(.*:{os.getpid()}\) have made nothing for 0\.2 s"):
        two.until("a")


def test_a_failure_is_recorded_with_its_limits_and_told_to_the_next(publisher: Makes) -> None:
    one, two = publisher("one", wall_s_max=7), publisher("two")
    one.claim("a")
    detail = "it ran out of its memory limit. /usr/lib/xla/pass.cc: bad_alloc"
    one.claims.failed("a", failed_with("memory", detail), machinery_alive=True)
    one.claims.settle("a")
    with pytest.raises(PublishError) as caught:
        two.claim("a")
    failure = failures.recorded(two.store, "a")
    assert failure
    assert (failure.what, failure.fingerprint) == ("the bucket a", "f00")
    assert failure.reason == (
        "memory: it ran out of its memory limit. pass.cc: bad_alloc (it was allowed 7 s, 3600 s of CPU time and 8 GiB)"
    )
    assert str(caught.value) == (
        f"the bucket a failed to compile before (at {failure.when} by {failure.by}): {failure.reason}; "
        "--retry-failed compiles it again"
    )
    assert two.store.names("leases") == []


def test_another_try_on_request_that_succeeds_ends_the_failure(publisher: Makes) -> None:
    one = publisher("one", retry_failed=True)
    failures.record(one.store, Failure.now(key="a", what="a", reason="no", fingerprint=""))
    assert one.claim("a") is True
    one.finish("a")
    assert one.store.names("failures") == []


def test_a_claim_is_given_up_whatever_goes_wrong_when_it_is_settled(
    publisher: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(*_: object) -> None:
        raise ValueError("no such path")

    one = publisher("one", retry_failed=True)
    failures.record(one.store, Failure.now(key="a", what="a", reason="no", fingerprint=""))
    assert one.claim("a") is True
    monkeypatch.setattr(failures, "forget", forget)
    with pytest.raises(ValueError, match="no such path"):
        one.claims.settle("a", made=True)
    assert one.store.names("leases") == []
    assert not one.claims.holds("a")


@pytest.mark.parametrize(
    ("error", "machinery_alive"),
    [
        (failed_with("exception", "OSError: [Errno 28] No space left on device"), True),
        (failed_with("exception", "FileNotFoundError: [Errno 2] artifact"), True),
        (failed_with("crash", "signal SIGTERM."), True),
        (failed_with("timeout", "it was not even forked within 600 s"), True),
        (failed_with("crash", "the zygote it was forked from is gone"), False),
        (PublishError("no child at all"), True),
        (ProofFailed("output 'y' is off by 0.5"), True),
    ],
)
def test_what_says_nothing_about_the_program_is_not_recorded(
    publisher: Makes, error: PublishError, machinery_alive: bool
) -> None:
    one = publisher("one")
    one.claim("a")
    one.claims.failed("a", error, machinery_alive=machinery_alive)
    assert one.store.names("failures") == []


@pytest.mark.parametrize(
    "error",
    [
        failed_with("exception", "ValueError: no such dialect"),
        failed_with("exception", "XlaRuntimeError: INTERNAL: no"),
        failed_with("crash", "signal SIGSEGV. somewhere"),
        failed_with("timeout", "it ran longer than 600 s"),
    ],
)
def test_what_says_something_about_the_program_is_recorded(publisher: Makes, error: PublishError) -> None:
    one = publisher("one")
    one.claim("a")
    one.claims.failed("a", error, machinery_alive=True)
    assert one.store.names("failures") == ["a"]


# Publishes.


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


class Processes:
    """Publishes of one file into one store, each in a process of its own, that begin to compile together.

    None of them proves an executable, or gives up its claim to it, before `trials` are let.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.trials = HeldWorkers(folder / "held", "trial")
        (folder / "model.py").write_text(MEETING + MODEL)
        (folder / "meeting").mkdir()
        (folder / "scratch").mkdir()
        self.begun = [self._begin(count, number) for number in range(count)]

    def _begin(self, count: int, number: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "warmpool.cli", "publish", str(self.folder / "model.py"), "--json"]
        environment = (
            os.environ
            | self.trials.environment
            | {
                "MEETING": str(self.folder / "meeting"),
                "MEETING_OF": str(count),
                "TMPDIR": str(self.folder / "scratch"),
            }
        )
        with self.log(number).open("wb") as log:
            return subprocess.Popen(
                [*command, "--store", str(self.store), "--allow-unsigned"],
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    def steps(self, number: int, kind: str) -> list[str]:
        """What a process said that it did: "compiled", "proved", "took"."""
        lines = self.log(number).read_text().splitlines()
        done = [line.partition("] ")[2].partition(", ")[0] for line in lines if "] " in line]
        return [step.removeprefix(kind).strip() for step in done if step.startswith(f"{kind} predict")]

    def until_compiled(self, number: int) -> None:
        self._until(number, lambda: self.steps(number, "compiled"))

    def until_claimed(self, number: int) -> None:
        self._until(number, lambda: self.begun[number].pid in claimants(self.store))

    def _until(self, number: int, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not condition():
            assert self.begun[number].poll() is None, self.log(number).read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def summary(self, number: int) -> Summary:
        out, _ = self.begun[number].communicate(timeout=WAIT_S_MAX)
        assert self.begun[number].returncode == 0, self.log(number).read_text()
        return msgspec.convert(json.loads(out), Summary)

    def close(self) -> None:
        for process in self.begun:
            process.kill()
            process.communicate()


def target_in(store: Path) -> Target:
    (path,) = store.glob("models/shared/*/targets/*.json")
    return msgspec.json.decode(path.read_bytes(), type=Target)


def cases(proofs: Iterable[ProofSpec]) -> set[tuple[str, int]]:
    return {(proof.kind, proof.cases) for proof in proofs}


def names(store: Path, folder: str) -> list[str]:
    return LocalStore(store).names(folder)


def claimants(store: Path) -> set[int]:
    """The processes that hold claims."""
    owners = [msgspec.json.decode(LocalStore(store).get(f"leases/{key}"))["owner"] for key in names(store, "leases")]
    return {int(owner.rpartition(":")[2]) for owner in owners}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """The folder of a store into which one publish alone published all, and what it said; no test changes it."""
    folder = tmp_path_factory.mktemp("alone")
    summary, _ = published(folder, MODEL)
    return folder / "store", summary


@pytest.mark.slow
def test_two_publishes_at_once_compile_each_executable_once(tmp_path: Path, alone: tuple[Path, Summary]) -> None:
    with contextlib.closing(Processes(tmp_path, 2)) as processes:
        for number in range(2):
            processes.until_claimed(number)
        processes.trials.let_all()
        summaries = [processes.summary(number) for number in range(2)]
        compiled = [processes.steps(number, "compiled") for number in range(2)]
        proved = [processes.steps(number, "proved") for number in range(2)]
        took = [processes.steps(number, "took") for number in range(2)]
    assert len(compiled[0] + compiled[1]) == len({*compiled[0], *compiled[1]}) == COUNT
    assert all(compiled)
    assert [one.compiled for one in summaries] == [len(one) for one in compiled]
    assert [one.machines[0].taken for one in summaries] == [COUNT - len(one) for one in compiled]
    assert [one.machines[0].proved for one in summaries] == [len(one) for one in proved]
    assert all(len(one) + len(other) == COUNT for one, other in zip(proved, took, strict=True))
    assert summaries[0].version == summaries[1].version
    assert names(processes.store, "leases") == []
    # What is kept of the proofs is what one publish alone would have kept.
    assert alone[1].compiled == COUNT
    target = target_in(processes.store)
    assert len(target.executables) == COUNT
    assert cases(target.proofs) == cases(alone[1].machines[0].proofs)


@pytest.mark.slow
def test_when_one_of_two_publishes_is_killed_the_other_takes_over_what_it_had_begun(tmp_path: Path) -> None:
    with contextlib.closing(Processes(tmp_path, 2)) as processes:
        processes.until_compiled(0)
        processes.begun[0].send_signal(signal.SIGKILL)
        processes.begun[0].wait()
        assert processes.begun[0].pid in claimants(processes.store)
        shorten(LocalStore(processes.store), processes.begun[0].pid)
        processes.trials.let_all()
        summary = processes.summary(1)
    assert len(target_in(processes.store).executables) == COUNT
    assert (summary.compiled, summary.machines[0].taken) == (COUNT, 0)
    assert names(processes.store, "leases") == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_publish_that_is_told_to_end_gives_up_its_claims_and_leaves_nothing(
    tmp_path: Path, number: int, status: int
) -> None:
    with contextlib.closing(Processes(tmp_path, 1)) as processes:
        processes.until_compiled(0)
        assert processes.begun[0].pid in claimants(processes.store)
        processes.begun[0].send_signal(number)
        assert processes.begun[0].wait(WAIT_S_MAX) == status
    assert processes.log(0).read_text().startswith("UNSIGNED content of the store is accepted"), "it is said loudly"
    assert names(processes.store, "leases") == []
    assert names(processes.store, "failures") == []
    assert list((tmp_path / "scratch").iterdir()) == []


def published(folder: Path, text: str, **options: object) -> tuple[Summary, Silent]:
    heard = Silent()
    return publish(options_of(folder, text, **options), heard), heard


def options_of(folder: Path, text: str, **options: object) -> Options:
    folder.mkdir(exist_ok=True)
    path = folder / "model.py"
    path.write_text(text)
    store = StoreSettings(store=str(folder / "store"), allow_unsigned=True)
    return Options(model_file=path, store=store, **options)  # type: ignore[arg-type]


def test_a_compile_that_failed_is_not_tried_again_but_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SLOW.replace("STEPS", "1")
    with monkeypatch.context() as held:
        for name, value in HeldWorkers(tmp_path / "held", "compile_bucket").environment.items():
            held.setenv(name, value)
        with pytest.raises(PublishError, match=r"compiling failed: timeout: it ran longer than 2 s"):
            published(tmp_path, text, limits=Limits(wall_s_max=2.0))
    heard = Silent()
    with pytest.raises(
        PublishError,
        match=r"model 'slow', method 'predict', bucket \* failed to compile before \(at .* by .*\): "
        r"timeout: it ran longer than 2 s \(it was allowed 2 s, 3600 s of CPU time and 8 GiB\); "
        r"--retry-failed compiles it again",
    ):
        publish(options_of(tmp_path, text), heard)
    assert not [step for step in heard.steps if step.startswith("compiled")]
    summary, heard = published(tmp_path, text, retry_failed=True)
    assert summary.compiled == 2
    assert heard.left == 0
    assert names(tmp_path / "store", "failures") == []


def test_a_compile_that_runs_out_of_memory_is_not_tried_again(tmp_path: Path) -> None:
    large = SLOW.replace("STEPS", "400")
    with pytest.raises(PublishError, match=r"failed: (memory|crash): "):
        published(tmp_path, large, limits=Limits(memory_bytes_max=1 << 29))
    with pytest.raises(
        PublishError, match=r"failed to compile before .*it was allowed 600 s, 3600 s of CPU time and 0\.5 GiB"
    ):
        published(tmp_path, large)


def test_a_proof_that_failed_is_no_compile_that_failed(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ProofFailed, match="the padding of input 'x'"):
            published(tmp_path, LEAKING)
    assert names(tmp_path / "store", "failures") == []
    assert names(tmp_path / "store", "leases") == []


class Meddler(Silent):
    """Another publish, as far as one executable goes: it makes it while we wait.

    Args:
        store: The folder that we publish into.
        finished: That of a store with the same version, whole.
        slow: Whether the executable is in the store for a while before its proof is.
        forgets: Whether it writes over all proofs, later.
    """

    def __init__(self, store: Path, finished: Path, *, slow: bool, forgets: bool) -> None:
        super().__init__()
        self.store = LocalStore(store)
        (path,) = finished.glob("models/shared/*/targets/*.json")
        self.path = path.relative_to(finished).as_posix()
        self.finished = target_in(finished)
        self.last = self.finished.executables[-1]
        self.artifact = (finished / executable_path(self.last.key)).read_bytes()
        self.wait_s = PAUSE_S_MAX + 0.5 if slow else 0.0
        self.forgets = forgets
        lease = Contender(self.store, f"leases/{self.last.key}", ttl_s=TTL_S_MAX).acquire()
        assert lease
        self.lease = lease
        self.thread = threading.Timer(self.wait_s, self.prove)

    def say(self, text: str) -> None:
        super().say(text)
        if text.startswith("waiting for "):
            self.store.put(executable_path(self.last.key), self.artifact)
            self.thread.start()

    def prove(self) -> None:
        own = msgspec.json.decode(self.store.get(self.path), type=Target)
        assert len(own.executables) == COUNT - 1
        both = msgspec.structs.replace(own, executables=(*own.executables, self.last))
        self.store.put(self.path, encode(both))
        self.lease.release()

    def step(self, text: str) -> None:
        super().step(text)
        if text.startswith("took ") and self.forgets:
            self.store.delete(self.path)


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "forgets"), [(False, False), (True, False), (False, True)])
def test_a_proof_that_others_make_is_waited_for_and_made_here_if_it_gets_lost(
    tmp_path: Path, alone: tuple[Path, Summary], slow: bool, forgets: bool
) -> None:
    options = options_of(tmp_path / "shared", MODEL)
    store = tmp_path / "shared" / "store"
    heard = Meddler(store, alone[0], slow=slow, forgets=forgets)
    summary = publish(options, heard)
    heard.thread.join()
    assert [step for step in heard.steps if step.startswith("took ")] == [
        "took predict batch=16,seq=2 for the CPU lane, which another publish made and proved"
    ]
    assert (summary.compiled, summary.machines[0].taken) == (COUNT - 1, 1)
    assert summary.machines[0].proved == (COUNT if forgets else COUNT - 1)
    target = target_in(store)
    assert [one.key for one in target.executables] == [one.key for one in heard.finished.executables]
    if forgets:
        assert cases(target.proofs) == cases(alone[1].machines[0].proofs)
    assert heard.left == 0
