"""Another bucket plan, and traffic that moves, while an instance serves and makes what it lacks: real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.gameday.fates import Fates
from cache.local_store import LocalStore
from cache.opening import open_store
from tests.all_the_time import AllTheTime
from tests.instance_process import InstanceProcess, inferred, wait_until
from tests.warmpool.command import warmpool
from tests.warmpool.publishing.toy import Heard, Toy
from warmpool import wire
from warmpool.manifest import Target, encode, executable_path
from warmpool.publishing.publish import Options, publish
from warmpool.shape_sketch import ShapeSketch
from warmpool.traffic_record import MethodTraffic, TrafficRecord, counts_of, encode_record, record_path

MADE_S_MAX = 180.0
LENGTHS = (2, 4, 8, 16)
LENGTHY = """
from warmpool.model import Dim, Model, Tensor
import numpy as np

batch = Dim("batch", max=1, sizes=(1,), batch=True)
seq = Dim("seq", max=16, sizes=(2, 4, 8, 16))
model = Model(
    name="toy",
    methods={"predict": lambda params, x: x.sum(axis=1) * params["factor"]},
    params={"factor": np.array(2.0, np.float32)},
    inputs={"x": Tensor("float32", (batch, seq), pad=0.0)},
)
"""


class Serving(InstanceProcess):
    """An instance that looks at its store often."""

    command = (sys.executable, "-m", "tests.warmpool.odd_instance")


class Asking(AllTheTime):
    """A caller that sends one row to four, with pauses: what makes executables gets what requests leave."""

    def __init__(self, instance: Serving) -> None:
        super().__init__(callers=1)
        self._instance = instance

    def ask_on(self, number: int) -> None:
        for rows in cycle((1, 2, 3, 4)):
            if self.stopping.wait(0.02):
                return
            try:
                ask(self._instance, rows, 4)
            except Exception as error:  # noqa: BLE001  the test looks at it
                self.wrong.append((rows, error))


def ask(instance: Serving, rows: int, length: int) -> dict[str, Any]:
    """A request that has to be answered right; what its answer says of how."""
    x = np.arange(rows * length, dtype=np.float32).reshape(rows, length)
    reply = instance.infer_reply("toy:predict", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})
    assert reply.status == 200, reply.body
    outputs, parameters = inferred(reply)
    np.testing.assert_allclose(outputs["output"], x.sum(axis=1) * 2.0, rtol=1e-5)
    return parameters


def warm(instance: Serving) -> set[str]:
    """The buckets that are warm on the primary lane."""
    executables = instance.lane("primary")["executables"]
    return {name.removeprefix("toy:predict ") for name, state in executables.items() if state == "warm"}


def assert_compiled_nowhere_else(instance: Serving) -> None:
    """Neither a lane nor the front compiled anything, and nobody was refused."""
    status = instance.status()
    assert status["front"]["jax_imported"] is False
    assert [lane["compiles"] for lane in status["lanes"]] == [0, 0]
    assert instance.gauge("warmpool_requests_by_step_total", model="toy", step="refused") == 0


@contextlib.contextmanager
def serving(toy: Toy, fates: Fates, log: Path) -> Iterator[Serving]:
    """An instance that makes what it lacks."""
    flags = ("--signing-key", str(toy.folder / "key"), "--compile", "auto")
    with Serving(toy.store, log, *flags, **fates.environment) as instance:
        wait_until(lambda: instance.answers("/v2/health/ready") == 200, MADE_S_MAX)
        yield instance


@contextlib.contextmanager
def two_cores() -> Iterator[None]:
    """What is started meanwhile compiles one executable at a time."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def target_file(store: Path) -> Path:
    (found,) = (store / "models" / "toy" / "1" / "targets").glob("*.json")
    return found


def seen(toy: Toy, *batches: int) -> None:
    """Instances have run many batches of these rows."""
    now_s = time.time()
    counted = ShapeSketch()
    for rows in batches:
        for _ in range(250):
            counted.add((rows, 4), now_s)
    counts = counts_of(counted, now_s)
    method = MethodTraffic(dims=("batch", "seq"), requests=counts, batches=counts)
    record = TrafficRecord(model="toy", written_s=now_s, methods={"predict": method})
    LocalStore(toy.store).put(record_path("toy", "another"), encode_record(record))


def measured(toy: Toy) -> None:
    """Every row takes so long, whatever this machine measured while others used it."""
    store, path = open_store(toy.settings), str(target_file(toy.store).relative_to(toy.store))
    target = msgspec.json.decode(store.get(path), type=Target)
    costs = tuple(msgspec.structs.replace(spec, cost_us=100.0 * spec.bucket["batch"]) for spec in target.executables)
    store.put(path, encode(msgspec.structs.replace(target, executables=costs)))


@pytest.mark.slow
def test_a_refitted_plan_is_made_and_taken_up_and_only_then_goes_the_old_one_and_nobody_is_refused(tmp_path):
    """It came from where it was fitted, and one of its executables did not."""
    toy = Toy(tmp_path / "toy")
    toy.folder.mkdir(exist_ok=True)
    toy.publish("1", sizes=(1, 2, 4))
    shutil.copytree(toy.folder, tmp_path / "fitted")
    fitted = Toy(tmp_path / "fitted")
    seen(fitted, 1, 3)
    measured(fitted)
    flags = ("--store", str(fitted.store), "--signing-key", str(fitted.folder / "key"))
    applied = warmpool("buckets", "fit", "toy", *flags, "--apply")
    assert applied.returncode == 0, applied.stderr

    fates = Fates(tmp_path / "fates")
    fates.write({"compile_bucket batch=3,seq=4": "wait"})
    old, new = ({f"batch={rows},seq=4" for rows in sizes} for sizes in ((1, 2, 4), (1, 3, 4)))
    with serving(toy, fates, tmp_path / "log") as instance:
        wait_until(lambda: warm(instance) == old)
        with Asking(instance) as callers:
            arriving = toy.store / "arriving"
            shutil.copyfile(target_file(fitted.store), arriving)
            arriving.replace(target_file(toy.store))
            wait_until(lambda: fates.met()["batch=3,seq=4"], MADE_S_MAX)
            assert warm(instance) == old
            fates.write({})
            passed: list[set[str]] = []

            def over() -> bool:
                passed.append(warm(instance))
                return passed[-1] == new

            wait_until(over, MADE_S_MAX)
        assert callers.wrong == []
        assert all(state in (old, old | new, new) for state in passed), passed
        wait_until(lambda: instance.status()["compiling"]["history"])  # it may be taken up before its maker has said so
        (made,) = instance.status()["compiling"]["history"]
        assert (made["title"], made["outcome"]) == ("toy:predict batch=3,seq=4", "made")
        ask(instance, 3, 4)  # on whatever takes it cheapest
        assert_compiled_nowhere_else(instance)


@pytest.mark.slow
def test_where_the_traffic_moves_what_it_needs_is_made_first(tmp_path):
    """Of four lengths one is there; another is being made while the traffic moves to what would have come last."""
    toy = Toy(tmp_path / "toy")
    toy.folder.mkdir(exist_ok=True)
    file = tmp_path / "lengthy.py"
    file.write_text(LENGTHY)
    fates = Fates(tmp_path / "fates")
    fates.write({f"compile_bucket batch=1,seq={length}": "wait" for length in LENGTHS})
    with two_cores(), contextlib.ExitStack() as stack:
        publish(Options(model_file=file, store=toy.settings, version="1"), Heard())
        store = open_store(toy.settings)
        path = target_file(toy.store).relative_to(toy.store)
        target = msgspec.json.decode(store.get(str(path)), type=Target)
        kept = tuple(spec for spec in target.executables if spec.bucket["seq"] == LENGTHS[-1])
        for spec in (one for one in target.executables if one not in kept):
            store.delete(executable_path(spec.key))
        store.put(str(path), encode(msgspec.structs.replace(target, executables=kept)))
        instance = stack.enter_context(serving(toy, fates, tmp_path / "log"))

        def compiling() -> Any:
            return instance.status()["compiling"]

        wait_until(fates.met, MADE_S_MAX)
        (first,) = fates.met()
        wait_until(lambda: compiling()["waiting"] == 2)
        *_, last = (one["title"].rpartition("seq=")[2] for one in compiling()["queue"])
        (other,) = {*map(str, LENGTHS[:-1])} - {last, first.rpartition("seq=")[2]}
        for length, times in ((int(other), 5), (int(last), 100)):
            for _ in range(times):
                assert ask(instance, 1, length)["step"] == "larger"
        wait_until(lambda: compiling()["queue"][0]["title"].endswith(f"seq={last}"))
        fates.write({f"compile_bucket batch=1,seq={other}": "wait"})
        wait_until(lambda: f"batch=1,seq={last}" in warm(instance), MADE_S_MAX)
        assert list(fates.met())[:2] == [first, f"batch=1,seq={last}"]
        fates.write({})
        wait_until(lambda: len(warm(instance)) == len(LENGTHS), MADE_S_MAX)
        assert_compiled_nowhere_else(instance)
