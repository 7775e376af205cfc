"""Rollouts on real instances under load: bad versions go back by themselves, with the right reason, and good ones stay.

No caller that gets the stable version ever gets a wrong answer, or none.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import Trust
from tests.all_the_time import AllTheTime
from tests.instance_process import InstanceProcess, inferred, wait_until
from tests.once import once
from tests.warmpool.cared_store import SIGNER
from tests.warmpool.command import warmpool
from tests.warmpool.rollout.faulty_versions import MODEL, STABLE, expected, publish_all
from warmpool import manifest as stored
from warmpool import wire
from warmpool.manifest import Serving

WAIT_S_MAX = 240.0
TIMEOUT_MS = 20_000
REST_S = 0.06  # of a caller: a judge bets once a second, however many answers there are


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "faulty", lambda folder: publish_all(LocalStore(folder / "store"))) / "store"


@pytest.fixture
def store(published: Path, tmp_path: Path) -> LocalStore:
    return LocalStore(shutil.copytree(published, tmp_path / "store"))


class Faulty(InstanceProcess):
    """An instance whose lanes have a version's faults."""

    command = (sys.executable, "-m", "tests.warmpool.rollout.faulty_instance")


def version(instance: InstanceProcess, name: str) -> str:
    """How a version is on an instance, "" for not there."""
    found: dict[str, Any] = instance.status()["models"][MODEL]["versions"].get(name, {})
    return str(found.get("state", ""))


class Callers(AllTheTime):
    """Callers of the model; what stable answers has to be right."""

    def __init__(self, instance: InstanceProcess, count: int = 3) -> None:
        super().__init__(count)
        self.counts: Counter[tuple[str, int]] = Counter()  # by version and status
        self._instance = instance

    def ask_on(self, number: int) -> None:
        random = np.random.default_rng(number)
        while not self.stopping.is_set():
            ids = random.integers(1, 10, (int(random.integers(1, 3)), int(random.integers(2, 8)))).astype(np.int32)
            tensor = wire.Tensor("INT32", ids.shape, ids.tobytes())
            try:
                reply = self._instance.infer_reply(
                    MODEL, {"ids": tensor}, headers={"x-warmpool-timeout-ms": str(TIMEOUT_MS)}
                )
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(error)
                return
            version = ""
            if reply.status == 200:
                version = str(wire.decode_response(reply.body, reply.headers.get(wire.HEADER_LENGTH)).model_version)
                found = inferred(reply).outputs["total"]
                if version == STABLE and not np.allclose(found, expected(ids), rtol=1e-5, atol=1e-5):
                    self.wrong.append((ids, found))
            with self.lock:
                self.counts[version, reply.status] += 1
            self.stopping.wait(REST_S)

    def of(self, version: str) -> int:
        with self.lock:
            return sum(count for (one, _), count in self.counts.items() if one == version)

    @property
    def failed(self) -> int:
        with self.lock:
            return sum(count for (_, status), count in self.counts.items() if status != 200)


def served(store: LocalStore) -> Serving:
    return msgspec.json.decode(store.get(stored.serving_path(MODEL)), type=Serving)


def start(store: LocalStore, version: str, *flags: str) -> None:
    arguments = ("rollout", "start", f"{MODEL}@{version}", "--store", str(store.root), "--allow-unsigned", *flags)
    result = warmpool(*arguments)
    assert result.returncode == 0, result.stderr


@contextlib.contextmanager
def faulty(store: LocalStore, folder: Path) -> Iterator[Faulty]:
    # With one thread alone the process is forked for its lanes, with what is wrong with them.
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    with Faulty(store.root, folder / "log", "--audit-log", str(folder / "audit"), **one_thread) as instance:
        instance.wait_ready()
        yield instance


FAULTS = {
    "nan": "NaN or infinity",
    "drifting": "differ from stable's",
    "leaking": "differ from stable's",
    "slow": "take longer than stable's",
    "growing": "lanes grow",
    "crashing": "lanes crash",
}


@pytest.mark.slow
@pytest.mark.parametrize("bad", FAULTS)
def test_a_bad_canary_goes_back_by_itself_for_what_it_does_and_stable_answers_all_the_while(
    store: LocalStore, tmp_path: Path, bad: str
) -> None:
    with faulty(store, tmp_path) as instance, Callers(instance) as callers:
        start(store, bad, "--share", "0.5", "--mirror", "0.5", "--bake-s", "3600")
        wait_until(lambda: callers.wrong or not served(store).canary, WAIT_S_MAX)
        assert not callers.wrong
        assert FAULTS[bad] in served(store).reason
        assert served(store).stable == STABLE
        wait_until(lambda: version(instance, bad) == "")
        before, others = callers.of(STABLE), callers.of(bad)
        wait_until(lambda: callers.wrong or callers.of(STABLE) >= before + 50)
        assert callers.of(bad) - others <= 3  # what was under way
        assert callers.of(bad) > 0 or bad == "crashing"
        assert not callers.wrong
        assert callers.failed == 0 or bad == "crashing"
        assert instance.gauge("warmpool_rollout_active", model=MODEL) == 1


@pytest.mark.slow
def test_a_good_canary_is_promoted_by_itself_and_no_caller_notices(store: LocalStore, tmp_path: Path) -> None:
    with faulty(store, tmp_path) as instance, Callers(instance) as callers:
        start(store, "good", "--share", "0.5", "--mirror", "0.5", "--bake-s", "5", "--requests-min", "50")
        wait_until(lambda: callers.wrong or served(store).stable == "good", WAIT_S_MAX)
        assert served(store).previous == STABLE
        wait_until(lambda: callers.wrong or callers.of("good") >= 150)
        wait_until(lambda: callers.wrong or version(instance, STABLE) == "warm")
        assert (callers.wrong, callers.failed) == ([], 0)


@pytest.mark.slow
def test_a_rollback_without_a_key_reaches_every_instance_and_one_that_starts_later(tmp_path: Path) -> None:
    key = tmp_path / "key"
    public = SIGNER.write(key)
    folder = tmp_path / "store"
    publish_all(SignedStore(LocalStore(folder), Trust.of([SIGNER.public]), SIGNER), (STABLE, "good"))
    trust = ("--trusted-keys", str(public))
    store = ("--store", str(folder))
    with contextlib.ExitStack() as stack:
        instances = [stack.enter_context(InstanceProcess(folder, tmp_path / name, *trust)) for name in ("a", "b")]
        for instance in instances:
            instance.wait_ready()
        callers = [stack.enter_context(Callers(instance, 1)) for instance in instances]
        signed = ("--signing-key", str(key))
        begun = warmpool("rollout", "start", f"{MODEL}@good", "--share", "0.5", "--by-hand", *store, *signed)
        assert begun.returncode == 0, begun.stderr
        wait_until(lambda: any(one.wrong for one in callers) or all(one.of("good") >= 10 for one in callers))
        over = warmpool("rollout", "rollback", MODEL, "--reason", "it was a drill", *store, *trust)
        assert over.returncode == 0, over.stderr
        wait_until(lambda: all(version(instance, "good") == "" for instance in instances))
        later = stack.enter_context(InstanceProcess(folder, tmp_path / "c", *trust))
        later.wait_ready()
        callers.append(stack.enter_context(Callers(later, 1)))
        before = [(one.of(STABLE), one.of("good")) for one in callers]
        wait_until(
            lambda: all(
                one.wrong or one.of(STABLE) >= stable + 30 for one, (stable, _) in zip(callers, before, strict=True)
            )
        )
        assert [one.of("good") for one in callers] == [good for _, good in before]
        assert (callers[-1].of("good"), [one.wrong for one in callers], [one.failed for one in callers]) == (
            0,
            [[], [], []],
            [0, 0, 0],
        )
        status = warmpool("rollout", "status", MODEL, *store, *trust)
        assert "rolled back" in status.stdout
        assert "it was a drill" in status.stdout
