"""Compiles of an instance that fail, and workers that end: recorded, and nobody's outage. Real processes."""

from __future__ import annotations

import contextlib
import operator
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cache.failures import recorded
from tests.instance_process import InstanceProcess, alive, descendants, inferred, wait_until
from tests.warmpool.command import warmpool
from tests.warmpool.compiling.place import (
    MADE_S_MAX,
    NAMES,
    OTHER_MACHINE,
    Place,
    ask,
    assert_compiled_nowhere_else,
    compiling,
)
from tests.warmpool.dead_leases import shorten
from tests.warmpool.publishing.toy import Heard, Toy
from tests.warmpool.sliced import told_of
from warmpool import wire
from warmpool.compiling.pulse import PROCESSORS_MAX
from warmpool.publishing.publish import Options, publish
from warmpool.slices import SHORT_S, slice_s

COMPILE_S_MAX = 60
COMPILE_BYTES_MAX = 6 << 30  # less than by default, and than what asks for too much gets without a limit
SMALLEST, LARGEST = 1, 8  # of each of the models of one instance; what is between them cannot be made


@dataclass(frozen=True)
class Fate:
    """What becomes of one size of a model, and what is said of it. After three nothing more of a program is tried."""

    model: str
    size: int
    what: str
    fate: str
    reason: str

    @property
    def bucket(self) -> str:
        return f"batch={self.size},seq=4"

    @property
    def title(self) -> str:
        return f"{self.model}:predict {self.bucket}"


FATES = (
    Fate("times", 2, "compile_bucket", "crash", "crash: signal SIGABRT"),
    Fate("times", 3, "compile_bucket", "memory", "memory: out of memory"),
    Fate("plus", 4, "compile_bucket", "raise", "ValueError: no such thing"),
    Fate("plus", 5, "trial", "crash", "its trial run failed: crash: signal SIGABRT"),
    Fate("minus", 6, "compile_bucket", "hang", f"timeout: it ran longer than {COMPILE_S_MAX} s"),
)
OPERATIONS = {"times": ("*", operator.mul), "plus": ("+", operator.add), "minus": ("-", operator.sub)}


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A store with nothing for a kind of machine on which some of what it has cannot be made, each in its own way."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "toy").mkdir()
    toy = Toy(folder / "toy")
    for model, (operation, _) in OPERATIONS.items():
        sizes = (SMALLEST, *(one.size for one in FATES if one.model == model), LARGEST)
        file = toy.model_file(2.0, sizes=sizes, name=model, operation=operation)
        file.write_text(file.read_text().replace('"batch", max=4', f'"batch", max={LARGEST}'))
        publish(Options(model_file=file, store=toy.settings, version="1"), Heard())
    shutil.rmtree(toy.folder / "author")
    with contextlib.ExitStack() as stack:
        place = Place(folder, stack)
        place.fates.write({f"{one.what} {one.bucket}": one.fate for one in FATES})
        yield place


@pytest.fixture(scope="module")
def instance(failing):
    """An instance that has tried everything."""
    limits = ("--compile-s-max", str(COMPILE_S_MAX), "--compile-memory-bytes-max", str(COMPILE_BYTES_MAX))
    instance = failing.start(*limits, **OTHER_MACHINE)
    wait_until(lambda: tried(instance), MADE_S_MAX + COMPILE_S_MAX)
    return instance


def tried(instance):
    return {f"{one.title} of 1" for one in FATES} <= compiling(instance)["failures"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES, ids=[f"{one.what} {one.fate}" for one in FATES])
def test_what_cannot_be_made_is_a_recorded_failure(failing, instance, fate):
    assert fate.reason in compiling(instance)["failures"][f"{fate.title} of 1"]
    (failed,) = {one["key"] for one in compiling(instance)["history"] if one["title"] == fate.title}
    failure = recorded(failing.bottom, failed)
    assert failure is not None
    assert fate.reason.removeprefix("its trial run failed: ") in failure.reason


@pytest.mark.slow
@pytest.mark.parametrize("model", OPERATIONS)
def test_what_can_be_made_is_and_the_instance_serves_on(instance, model):
    sound = [f"batch={size},seq=4" for size in (SMALLEST, LARGEST)]
    wait_until(lambda: {f"{model}:predict {name}" for name in sound} <= instance.lane("primary")["executables"].keys())
    found = {title for title in compiling(instance)["failures"] if "cpu lane" not in title}
    assert found == {f"{one.title} of 1" for one in FATES}
    for rows in (1, 2, LARGEST):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        reply = instance.infer_reply(f"{model}:predict", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})
        assert reply.status == 200, reply.body
        outputs, parameters = inferred(reply)
        assert outputs["output"].tolist() == OPERATIONS[model][1](x.sum(axis=1), 2.0).tolist()
        assert parameters["bucket"] in sound
    assert instance.answers("/v2/health/ready") == 200
    assert_compiled_nowhere_else(instance)


@pytest.mark.slow
def test_the_status_command_shows_it(instance):
    shown = warmpool("status", "--url", f"http://127.0.0.1:{instance.port}").stdout
    assert FATES[0].title in shown
    assert "SIGABRT" in shown


@pytest.mark.slow
def test_what_failed_is_not_compiled_again_by_the_next_instance(failing, instance):
    before = {one.bucket: failing.fates.met()[one.bucket] for one in FATES}
    failing.fates.write({})
    after = failing.start(**OTHER_MACHINE)
    wait_until(lambda: tried(after), MADE_S_MAX)
    assert all("before" in reason for reason in compiling(after)["failures"].values())
    assert {one.bucket: failing.fates.met()[one.bucket] for one in FATES} == before


class NiceInstance(InstanceProcess):
    """Its worker is as nice as it really is."""

    command = (sys.executable, "-m", "warmpool.cli")


def found_of(asked, pids):
    """What the system says of each process or thread, but for those that ended meanwhile."""
    found = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found.add(asked(pid))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_worker_and_all_that_it_starts_get_what_nobody_else_wants_of_the_processors_and_end_with_the_front(
    place, number
):
    """Even if that is killed."""
    place.fates.write({f"compile_bucket {NAMES[1]}": "hang"})
    instance = place.start(kind=NiceInstance, **OTHER_MACHINE)
    wait_until(lambda: place.fates.met()[NAMES[1]], MADE_S_MAX)
    worker = compiling(instance)["worker_pid"]
    processes = {worker, *descendants(worker)}
    assert len(processes) >= 4  # two zygotes, a child that compiles
    assert found_of(partial(os.getpriority, os.PRIO_PROCESS), processes) == {19}
    assert found_of(os.sched_getscheduler, processes) == {os.SCHED_IDLE}
    pulse = {os.SCHED_OTHER} if len(os.sched_getaffinity(0)) <= PROCESSORS_MAX else set()  # which has to be let in
    threads = [int(one.name) for one in Path(f"/proc/{worker}/task").iterdir()]
    assert found_of(os.sched_getscheduler, threads) == {os.SCHED_IDLE} | pulse
    assert os.getpriority(os.PRIO_PROCESS, instance.process.pid) == 0
    assert found_of(os.sched_getscheduler, instance.pids - processes) == {os.SCHED_OTHER}
    if told_of():  # who serves gets processors sooner, and who compiles does not
        serve = {instance.process.pid, *(lane["pid"] for lane in instance.status()["lanes"] if lane["pid"])}
        assert len(serve) >= 2
        wait_until(lambda: max(found_of(slice_s, serve)) < 2 * SHORT_S < min(found_of(slice_s, processes)))
        of_threads = found_of(lambda one: (os.sched_getscheduler(one), slice_s(one) < 2 * SHORT_S), threads)
        assert of_threads == {(os.SCHED_IDLE, False)} | {(policy, True) for policy in pulse}

    processes |= {instance.process.pid, *descendants(instance.process.pid)}
    assert instance.stop(number) == (0 if number == signal.SIGTERM else -number)
    wait_until(lambda: not any(map(alive, processes)))


def test_a_front_that_is_told_to_end_does_while_it_compiles_and_gives_up_its_leases(place):
    place.fates.write({f"compile_bucket {NAMES[1]}": "hang"})
    instance = place.start("--drain-s-max", "200", **OTHER_MACHINE)
    wait_until(lambda: place.fates.met()[NAMES[1]], MADE_S_MAX)
    processes = descendants(instance.process.pid)
    assert place.bottom.names("leases")
    assert instance.stop() == 0
    wait_until(lambda: not any(map(alive, processes)))
    assert place.bottom.names("leases") == []
    assert place.bottom.names("failures") == []


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_what_it_died_of_twice_is_a_failure(place):
    place.fates.write({f"compile_bucket {NAMES[1]}": "hang"})
    instance = place.start(**OTHER_MACHINE)
    title = f"toy:predict {NAMES[1]} of 1"

    def met(count: int) -> bool:
        return place.fates.met()[NAMES[1]] >= count

    for deaths in (1, 2):
        wait_until(partial(met, deaths), MADE_S_MAX)
        assert title not in compiling(instance)["failures"]
        worker = compiling(instance)["worker_pid"]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not alive(worker))  # noqa: B023  it is called here
        shorten(place.bottom, worker)
    wait_until(lambda: title in compiling(instance)["failures"], MADE_S_MAX)
    assert "2 compile workers ended while they made it" in compiling(instance)["failures"][title]
    wait_until(lambda: f"toy:predict {NAMES[2]}" in instance.lane("primary")["executables"], MADE_S_MAX)
    ask(instance, 2)
