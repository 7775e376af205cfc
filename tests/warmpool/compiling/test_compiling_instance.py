"""Instances that make what their store lacks, while they serve: real processes on signed stores."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gameday.fates import Fates
from cache.failures import recorded
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.wanted import wanted
from tests.instance_process import InstanceProcess, alive, descendants, inferred, wait_until
from tests.once import once
from tests.warmpool.command import warmpool
from tests.warmpool.dead_leases import shorten
from tests.warmpool.publishing.toy import Heard, Toy
from warmpool import wire
from warmpool.publishing.publish import Options, publish
from warmpool.survey import survey

SIZES = (1, 2, 4)
NAMES = [f"batch={size},seq=4" for size in SIZES]
OTHER_MACHINE = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
MADE_S_MAX = 120.0


def publish_toy(folder: Path) -> None:
    """Publish toy 1 into a store in this folder; its author's file goes."""
    Toy(folder).publish("1", sizes=SIZES)
    shutil.rmtree(folder / "author")


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The folder of that store; no test changes it."""
    return once(tmp_path_factory, "toy", publish_toy)


class Place:
    """The store of one test, and instances on it whose compiles meet their fates."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.toy = Toy(folder / "toy")
        self.bottom = LocalStore(self.toy.store)
        self.store = open_store(self.toy.settings)
        self.fates = Fates(folder / "fates")
        self._folder = folder
        self._stack = stack
        self._count = 0

    def start(self, *flags: str, sign: bool = True, **environment: str) -> InstanceProcess:
        """An instance that may compile; it listens."""
        self._count += 1
        key = str(self.toy.folder / "key")
        trust = ("--signing-key", key) if sign else ("--trusted-keys", f"{key}.pub")
        wanted_on = () if "--compile" in flags else ("--compile", "auto")
        log = self._folder / f"log{self._count}"
        instance = InstanceProcess(
            self.toy.store, log, *trust, *wanted_on, *flags, **self.fates.environment, **environment
        )
        self._stack.callback(_end, instance)
        wait_until(lambda: instance.answers("/v1/status") == 200)
        wait_until(lambda: compiling(instance)["state"] != "starting")
        return instance

    def listed(self) -> list[str]:
        """The executables of the only target."""
        (version,) = survey(self.store).versions
        (target,) = version.targets.values()
        return [spec.key for spec in target.executables]


def _end(instance: InstanceProcess) -> None:
    """It ends in order, or was killed by its test; in any case with all that it started."""
    if instance.process.returncode is None:
        instance.__exit__()
    wait_until(lambda: not any(map(alive, instance.pids)))


@pytest.fixture
def place(published, tmp_path):
    shutil.copytree(published, tmp_path / "toy")
    with contextlib.ExitStack() as stack:
        yield Place(tmp_path, stack)


def compiling(instance) -> dict[str, Any]:
    found: dict[str, Any] = instance.status()["compiling"]
    return found


def whole(instance) -> bool:
    """Whether both lanes are warm, with all that is planned, and nothing is missing any more."""
    status = instance.status()
    primary = status["lanes"][0]
    lanes = all(
        lane["state"] == "warm" and lane["warm"] == lane["planned"] > 0 and not lane["cold"] and not lane["missing"]
        for lane in status["lanes"]
    )
    return lanes and {f"toy:predict {name}" for name in NAMES} <= primary["executables"].keys()


def wait_whole(instance) -> None:
    wait_until(lambda: whole(instance), MADE_S_MAX)


def ask(instance, rows: int) -> dict[str, Any]:
    """A request that has to be answered right; what its answer says of how."""
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    reply = instance.infer_reply("toy:predict", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})
    assert reply.status == 200, reply.body
    outputs, parameters = inferred(reply)
    np.testing.assert_allclose(outputs["output"], x.sum(axis=1) * 2.0, rtol=1e-5)
    return parameters


def assert_compiled_nowhere_else(instance) -> None:
    """Neither a lane nor the front compiled anything."""
    status = instance.status()
    assert status["front"]["jax_imported"] is False
    assert [lane["compiles"] for lane in status["lanes"]] == [0, 0]


def test_a_store_that_has_nothing_for_this_kind_of_machine_is_filled_by_the_instance_itself(place):
    before = set(place.bottom.names("executables"))
    instance = place.start(**OTHER_MACHINE)
    wait_until(lambda: instance.answers("/v2/health/ready") == 200, MADE_S_MAX)
    ask(instance, 1)
    wait_whole(instance)
    for rows in (1, 2, 3, 4):
        ask(instance, rows)
    assert_compiled_nowhere_else(instance)

    def all_made() -> Any:
        """The status once everything was made, of which nothing is left to do."""
        (version,) = survey(place.store).versions
        theirs, ours = (len(target.executables) for target in version.targets.values())
        found = compiling(instance)
        listed = {spec.key for target in version.targets.values() for spec in target.executables} - before
        whole = listed == {one["key"] for one in found["history"]}
        return found if theirs == ours and whole and found["state"] == "idle" and not found["waiting"] else None

    status = wait_until(all_made, MADE_S_MAX)
    assert {one["outcome"] for one in status["history"]} == {"made"}
    assert (status["failures"], status["waiting"], status["running"]) == ({}, 0, [])
    assert instance.gauge("warmpool_compiled_total", outcome="made") == len(status["history"])
    assert instance.gauge("warmpool_compiled_total", outcome="failed") == instance.gauge("warmpool_compiles_waiting")
    assert all(count == 1 for count in place.fates.keys().values())


def test_the_worker_and_all_that_it_starts_get_what_nobody_else_wants_of_the_processors(place):
    place.fates.write({f"compile_bucket {NAMES[1]}": "hang"})
    instance = place.start(**OTHER_MACHINE)
    wait_until(lambda: place.fates.met()[NAMES[1]], MADE_S_MAX)
    worker = compiling(instance)["worker_pid"]
    processes = {worker, *descendants(worker)}
    assert len(processes) >= 4  # two zygotes, a child that compiles
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in processes} == {19}
    assert {os.sched_getscheduler(pid) for pid in processes} == {os.SCHED_IDLE}
    assert os.getpriority(os.PRIO_PROCESS, instance.process.pid) == 0
    assert {os.sched_getscheduler(pid) for pid in instance.pids - processes} == {os.SCHED_OTHER}


def test_half_of_the_executables_are_corrupt_and_come_back_without_anybody(place):
    keys = place.listed()
    for key in keys[::2]:
        path = f"executables/{key}"
        data = place.bottom.get(path)
        place.bottom.put(path, data[:-200] + bytes(200))
    instance = place.start()
    wait_whole(instance)
    assert instance.status()["store"]["quarantined"] == len(keys[::2])
    for rows in (1, 2, 3, 4):
        ask(instance, rows)
    assert_compiled_nowhere_else(instance)
    wait_until(lambda: wanted(place.bottom) == [])


def test_executables_that_are_gone_come_back_without_anybody(place):
    for key in place.listed():
        place.bottom.delete(f"executables/{key}")
    instance = place.start()
    wait_whole(instance)
    ask(instance, 4)
    assert_compiled_nowhere_else(instance)


@pytest.mark.slow
def test_a_new_version_with_another_program_is_made_here_and_once_it_is_whole_it_answers(place):
    """It was published on another kind of machine."""
    instance = place.start(**OTHER_MACHINE)
    wait_whole(instance)
    place.fates.write({f"compile_bucket {NAMES[1]}": "wait"})
    file = place.toy.model_file(3.0, sizes=SIZES, operation="+")
    publish(Options(model_file=file, store=place.toy.settings, version="2"), Heard())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    answers = {"1": (x.sum(axis=1) * 2.0).tolist(), "2": (x.sum(axis=1) + 3.0).tolist()}

    def version_that_answers() -> str:
        reply = instance.infer_reply("toy", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})
        assert reply.status == 200, reply.body
        version: str = wire.decode_response(reply.body, reply.headers.get(wire.HEADER_LENGTH)).model_version
        assert inferred(reply).outputs["output"].tolist() == answers[version]
        return version

    wait_until(lambda: place.fates.met()[NAMES[1]] == 2, MADE_S_MAX)
    wait_until(lambda: instance.lane("primary")["warm"] > len(SIZES), MADE_S_MAX)  # its minimum set is
    assert [version_that_answers() for _ in range(10)] == ["1"] * 10
    place.fates.write({})
    wait_until(lambda: version_that_answers() == "2", MADE_S_MAX)
    assert_compiled_nowhere_else(instance)


def test_one_that_goes_while_the_instance_serves_comes_back_too(place):
    """It is warm all the while: what is missing is the store's copy, for others and for later."""
    (key, *_) = place.listed()
    instance = place.start()
    wait_whole(instance)
    place.bottom.delete(f"executables/{key}")
    wait_until(lambda: key in place.bottom.names("executables"), MADE_S_MAX)
    assert whole(instance)


@pytest.mark.parametrize(
    ("what", "fate", "reason"),
    [
        ("compile_bucket", "crash", "crash: signal SIGABRT"),
        ("compile_bucket", "memory", "memory: out of memory"),
        ("compile_bucket", "raise", "ValueError: no such thing"),
        ("trial", "crash", "its trial run failed: crash: signal SIGABRT"),
    ],
)
def test_what_cannot_be_made_is_a_recorded_failure_and_the_instance_serves_on(place, what, fate, reason):
    place.fates.write({f"{what} {NAMES[1]}": fate})
    instance = place.start(**OTHER_MACHINE)
    failures = wait_until(lambda: compiling(instance)["failures"], MADE_S_MAX)
    (title,) = {title for title in failures if "cpu lane" not in title}
    assert title == f"toy:predict {NAMES[1]} of 1"
    assert reason in failures[title]
    wait_until(lambda: f"toy:predict {NAMES[2]}" in instance.lane("primary")["executables"], MADE_S_MAX)
    assert ask(instance, 2)["bucket"] in {NAMES[0], NAMES[2]}
    assert instance.answers("/v2/health/ready") == 200
    (failed,) = {one["key"] for one in compiling(instance)["history"] if one["title"] == f"toy:predict {NAMES[1]}"}
    failure = recorded(place.bottom, failed)
    assert failure is not None
    assert reason.removeprefix("its trial run failed: ") in failure.reason
    assert_compiled_nowhere_else(instance)


@pytest.mark.slow
def test_a_compile_that_hangs_is_ended_and_recorded(place):
    place.fates.write({f"compile_bucket {NAMES[2]}": "hang"})
    instance = place.start("--compile-s-max", "20", **OTHER_MACHINE)
    wait_until(lambda: f"toy:predict {NAMES[2]} of 1" in compiling(instance)["failures"], MADE_S_MAX)
    assert "timeout: it ran longer than 20 s" in compiling(instance)["failures"][f"toy:predict {NAMES[2]} of 1"]
    wait_until(lambda: f"toy:predict {NAMES[1]}" in instance.lane("primary")["executables"], MADE_S_MAX)
    ask(instance, 4)


def test_what_failed_is_not_compiled_again_by_the_next_instance(place):
    place.fates.write({f"compile_bucket {NAMES[1]}": "crash"})
    first = place.start(**OTHER_MACHINE)
    wait_until(lambda: compiling(first)["failures"], MADE_S_MAX)
    first.stop()
    before = place.fates.met()[NAMES[1]]
    place.fates.write({})
    second = place.start(**OTHER_MACHINE)
    failures = wait_until(lambda: compiling(second)["failures"], MADE_S_MAX)
    assert all("before" in reason for reason in failures.values())
    assert place.fates.met()[NAMES[1]] == before


def test_two_instances_that_start_at_once_on_one_store_compile_each_executable_once(place):
    instances = [place.start(**OTHER_MACHINE) for _ in range(2)]
    for instance in instances:
        wait_whole(instance)
        ask(instance, 4)
        assert_compiled_nowhere_else(instance)
    counts = place.fates.keys()
    assert len(counts) >= len(SIZES)
    assert set(counts.values()) == {1}


def test_a_front_that_is_killed_leaves_no_orphan(place):
    place.fates.write({f"compile_bucket {NAMES[1]}": "hang"})
    instance = place.start(**OTHER_MACHINE)
    wait_until(lambda: place.fates.met()[NAMES[1]], MADE_S_MAX)
    processes = {instance.process.pid, *descendants(instance.process.pid)}
    assert compiling(instance)["worker_pid"] in processes
    instance.process.kill()
    instance.process.wait()
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


def test_without_a_key_that_signs_nothing_is_made_and_the_status_says_why(place):
    (key, *_) = place.listed()
    place.bottom.delete(f"executables/{key}")
    instance = place.start(sign=False)
    wait_until(lambda: instance.status()["lanes"][0]["cold"])
    assert compiling(instance)["state"] == "off"
    assert "give a signing key" in compiling(instance)["reason"]
    assert place.fates.met() == {}


def test_it_is_off_where_it_is_turned_off(place):
    instance = place.start("--compile", "off")
    assert (compiling(instance)["state"], compiling(instance)["reason"]) == ("off", "--compile off")


def test_the_status_command_shows_it(place):
    place.fates.write({f"compile_bucket {NAMES[1]}": "crash"})
    instance = place.start(**OTHER_MACHINE)
    wait_until(lambda: compiling(instance)["failures"], MADE_S_MAX)
    shown = warmpool("status", "--url", f"http://127.0.0.1:{instance.port}").stdout
    assert f"toy:predict {NAMES[1]}" in shown
    assert "SIGABRT" in shown
