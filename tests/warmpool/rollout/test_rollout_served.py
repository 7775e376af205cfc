"""Rollouts on real instances under load: bad versions go back by themselves, with the right reason, and good ones stay.

No caller that gets the stable version ever gets a wrong answer, or none.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import pytest

from cache.local_store import LocalStore
from tests.instance_process import InstanceProcess, inferred, wait_until
from tests.once import once
from tests.warmpool.command import warmpool
from tests.warmpool.rollout.faulty_versions import MODEL, STABLE, expected, publish_all
from warmpool import manifest as stored
from warmpool import wire
from warmpool.manifest import Serving

WAIT_S_MAX = 240.0
TIMEOUT_MS = 20_000


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "faulty", lambda folder: publish_all(LocalStore(folder / "store"))) / "store"


@pytest.fixture
def store(published: Path, tmp_path: Path) -> LocalStore:
    return LocalStore(shutil.copytree(published, tmp_path / "store"))


class Faulty(InstanceProcess):
    """An instance whose lanes have a version's faults."""

    command = (sys.executable, "-m", "tests.warmpool.rollout.faulty_instance")

    def ask(self, method: str, path: str, *more: Any, **kinds: Any) -> Any:
        return super().ask(method, path, *more, **kinds)

    def rollout(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["rollouts"].get(MODEL, {})
        return found

    def version(self, version: str) -> str:
        found: dict[str, Any] = self.status()["models"][MODEL]["versions"].get(version, {})
        return str(found.get("state", ""))


class Callers:
    """Who ask all the time, as `with Callers(instance) as callers: ...`; what stable answers has to be right."""

    def __init__(self, instance: Faulty, count: int = 3) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()  # by version and status
        self.wrong: list[Any] = []
        self._instance = instance
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, number: int) -> None:
        random = np.random.default_rng(number)
        while not self._stopping.is_set():
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
            with self._lock:
                self.counts[version, reply.status] += 1
            time.sleep(0.005)

    def of(self, version: str) -> int:
        with self._lock:
            return sum(count for (one, _), count in self.counts.items() if one == version)

    @property
    def failed(self) -> int:
        with self._lock:
            return sum(count for (_, status), count in self.counts.items() if status != 200)


def served(store: LocalStore) -> Serving:
    return msgspec.json.decode(store.get(stored.serving_path(MODEL)), type=Serving)


def start(store: LocalStore, version: str, *flags: str) -> None:
    arguments = ("rollout", "start", f"{MODEL}@{version}", "--store", str(store.root), "--allow-unsigned", *flags)
    result = warmpool(*arguments)
    assert result.returncode == 0, result.stderr


@contextlib.contextmanager
def faulty(store: LocalStore, folder: Path) -> Iterator[Faulty]:
    with Faulty(store.root, folder / "log", "--audit-log", str(folder / "audit")) as instance:
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
@pytest.mark.parametrize("version", FAULTS)
def test_a_bad_canary_goes_back_by_itself_for_what_it_does_and_stable_answers_all_the_while(
    store: LocalStore, tmp_path: Path, version: str
) -> None:
    with faulty(store, tmp_path) as instance, Callers(instance) as callers:
        start(store, version, "--share", "0.25", "--mirror", "0.5", "--bake-s", "3600")
        wait_until(lambda: callers.wrong or not served(store).canary, WAIT_S_MAX)
        assert not callers.wrong
        assert FAULTS[version] in served(store).reason
        assert served(store).stable == STABLE
        wait_until(lambda: instance.version(version) == "")
        before, others = callers.of(STABLE), callers.of(version)
        wait_until(lambda: callers.wrong or callers.of(STABLE) >= before + 50)
        assert callers.of(version) - others <= 3  # what was under way
        assert callers.of(version) > 0 or version == "crashing"
        assert not callers.wrong
        assert callers.failed == 0 or version == "crashing"
        assert instance.gauge("warmpool_rollout_active", model=MODEL) == 1


@pytest.mark.slow
def test_a_good_canary_is_promoted_by_itself_and_no_caller_notices(store: LocalStore, tmp_path: Path) -> None:
    with faulty(store, tmp_path) as instance, Callers(instance) as callers:
        start(store, "good", "--share", "0.25", "--mirror", "0.5", "--bake-s", "5", "--requests-min", "50")
        wait_until(lambda: callers.wrong or served(store).stable == "good", WAIT_S_MAX)
        assert served(store).previous == STABLE
        wait_until(lambda: callers.wrong or callers.of("good") >= 300)
        assert instance.version(STABLE) == "warm"
        assert (callers.wrong, callers.failed) == ([], 0)
