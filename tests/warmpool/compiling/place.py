"""A signed store of one test, instances on it that make what it lacks, and what becomes of their compiles."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gameday.fates import Fates
from cache.local_store import LocalStore
from cache.opening import open_store
from tests.all_the_time import AllTheTime
from tests.instance_process import InstanceProcess, Reply, alive, inferred, wait_until
from tests.warmpool.publishing.toy import Toy
from warmpool import wire
from warmpool.survey import survey

SIZES = (1, 2, 4)
NAMES = [f"batch={size},seq=4" for size in SIZES]
OTHER_MACHINE = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
MADE_S_MAX = 120.0


def publish_toy(folder: Path) -> None:
    """Publish toy 1 into a store in this folder; its author's file goes."""
    Toy(folder).publish("1", sizes=SIZES)
    shutil.rmtree(folder / "author")


class Place:
    """A store, and instances on it whose compiles meet their fates.

    Args:
        folder: Has the store, as `Toy` made it, in its folder "toy".
        stack: Ends them.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.toy = Toy(folder / "toy")
        self.bottom = LocalStore(self.toy.store)
        self.store = open_store(self.toy.settings)
        self.fates = Fates(folder / "fates")
        self._folder = folder
        self._stack = stack
        self._count = 0

    def start(
        self,
        *flags: str,
        sign: bool = True,
        kind: type[InstanceProcess] = InstanceProcess,
        callers: Callers | None = None,
        **environment: str,
    ) -> InstanceProcess:
        """An instance that may compile; it listens, and callers ask it as soon as it does."""
        self._count += 1
        key = str(self.toy.folder / "key")
        trust = ("--signing-key", key) if sign else ("--trusted-keys", f"{key}.pub")
        wanted_on = () if "--compile" in flags else ("--compile", "auto")
        log = self._folder / f"log{self._count}"
        instance = kind(self.toy.store, log, *trust, *wanted_on, *flags, **self.fates.environment, **environment)
        self._stack.callback(_end, instance)
        if callers:
            callers.move(instance)
        wait_until(lambda: instance.answers("/v1/status") == 200)
        wait_until(lambda: compiling(instance)["state"] != "starting")
        return instance

    def empty(self) -> None:
        """Take all executables, and the targets that list them."""
        for name in self.bottom.names("executables"):
            self.bottom.delete(f"executables/{name}")
        for file in (self.toy.store / "models").glob("*/*/targets/*.json"):
            file.unlink()

    def listed(self) -> list[str]:
        """The executables of the only target; none without it."""
        (version,) = survey(self.store).versions
        assert len(version.targets) <= 1
        return [spec.key for target in version.targets.values() for spec in target.executables]


def _end(instance: InstanceProcess) -> None:
    """It ends in order, or was killed by its test; in any case with all that it started."""
    if instance.process.returncode is None:
        instance.__exit__()
    wait_until(lambda: not any(map(alive, instance.pids)))


def compiling(instance: InstanceProcess) -> dict[str, Any]:
    """What its status says of compiles."""
    found: dict[str, Any] = instance.status()["compiling"]
    return found


def whole(instance: InstanceProcess) -> bool:
    """Whether both lanes are warm, with all that is planned, and nothing is missing any more."""
    status = instance.status()
    primary = status["lanes"][0]
    lanes = all(
        lane["state"] == "warm" and lane["warm"] == lane["planned"] > 0 and not lane["cold"] and not lane["missing"]
        for lane in status["lanes"]
    )
    return lanes and {f"toy:predict {name}" for name in NAMES} <= primary["executables"].keys()


def wait_whole(instance: InstanceProcess) -> None:
    wait_until(lambda: whole(instance), MADE_S_MAX)


def asked(instance: InstanceProcess, rows: int) -> Reply:
    """What becomes of a request of so many rows."""
    x = _rows(rows)
    return instance.infer_reply("toy:predict", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})


def checked(reply: Reply, rows: int) -> dict[str, Any]:
    """That it was answered right; what its answer says of how."""
    assert reply.status == 200, reply.body
    outputs, parameters = inferred(reply)
    np.testing.assert_allclose(outputs["output"], _rows(rows).sum(axis=1) * 2.0, rtol=1e-5)
    return parameters


def ask(instance: InstanceProcess, rows: int) -> dict[str, Any]:
    """A request that has to be answered right; what its answer says of how."""
    return checked(asked(instance, rows), rows)


def _rows(rows: int) -> np.ndarray:
    return np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)


def assert_compiled_nowhere_else(instance: InstanceProcess) -> None:
    """Neither a lane nor the front compiled anything."""
    status = instance.status()
    assert status["front"]["jax_imported"] is False
    assert [lane["compiles"] for lane in status["lanes"]] == [0, 0]


@dataclass
class _Asked:
    """An instance that is asked: whether it listens, whether it said that it is ready, and its right answers."""

    instance: InstanceProcess
    listens: bool = False
    ready: bool = False
    answers: int = 0


class Callers(AllTheTime):
    """A caller that asks an instance from the moment that it listens, one row to four.

    All answers have to be right. Before the instance said that it is ready it may say when to come again.
    """

    def __init__(self) -> None:
        super().__init__(callers=1)
        self._asked: _Asked | None = None

    def move(self, instance: InstanceProcess, *, ready: bool = False) -> None:
        """Ask this one from now on; `ready`: it said that it is."""
        self._asked = _Asked(instance, ready=ready)

    def wait_answers(self, count: int = 1) -> None:
        """Until there are so many more of the one that is asked; whoever was asked before it is not any more."""
        assert self._asked is not None
        found = self._asked
        before = found.answers
        wait_until(lambda: self.wrong or found.answers >= before + count)
        self.assert_right()

    def assert_right(self) -> None:
        """There were answers, and all were right."""
        assert self.wrong == []
        assert self._asked is not None
        assert self._asked.answers

    def ask_on(self, number: int) -> None:
        for rows in cycle((1, 2, 3, 4)):
            if self.stopping.wait(0.02):
                return
            if found := self._asked:
                try:
                    _ask_once(found, rows)
                except Exception as error:  # noqa: BLE001  the test looks at it
                    self.wrong.append((rows, error))


def _ask_once(one: _Asked, rows: int) -> None:
    ready = one.ready
    try:
        reply = asked(one.instance, rows)
    except ConnectionRefusedError:
        assert not one.listens
        return
    one.listens = True
    if reply.status == 503 and not ready:
        assert int(reply.headers["Retry-After"]) > 0
        one.ready = one.instance.answers("/v2/health/ready") == 200
        return
    checked(reply, rows)
    one.ready = one.ready or one.instance.answers("/v2/health/ready") == 200
    one.answers += 1
