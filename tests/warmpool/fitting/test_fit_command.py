"""`warmpool buckets`: from what instances counted to a plan that they serve, with real executables."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.opening import open_store
from tests.instance_process import InstanceProcess, inferred, wait_until
from tests.warmpool.publishing.toy import Toy
from warmpool import cli, wire
from warmpool.manifest import Target, encode, target_path
from warmpool.shape_sketch import ShapeSketch
from warmpool.survey import survey
from warmpool.traffic_record import MethodTraffic, TrafficRecord, counts_of, encode_record, record_path

DECLARED = [1, 2, 4]


class Outcome(NamedTuple):
    """What the command exited with and printed."""

    status: int
    out: str
    err: str


class World:
    """A store with a model of batches of 1, 2 and 4, of 4 numbers a row, and the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.toy = Toy(folder)
        self.capsys = capsys

    def look(self, *arguments: str, model: str = "toy") -> Outcome:
        """Fit for the kind of machine that the model is published for, which need not be asked what it is."""
        return self.run("--fingerprint", Fingerprint(self.target.fingerprint).digest, *arguments, model=model)

    def run(self, *arguments: str, command: str = "fit", model: str = "toy") -> Outcome:
        settings = self.toy.settings
        flags = ["--store", settings.store, "--signing-key", settings.signing_key]
        self.capsys.readouterr()
        status = cli.main(["buckets", command, model, *flags, *arguments])
        return Outcome(status, *self.capsys.readouterr())

    def json(self, *arguments: str) -> Any:
        outcome = self.look("--json", *arguments)
        assert outcome.status == 0, outcome.err
        return json.loads(outcome.out)

    def count(self, instance: str, *batches: int, times: int = 250, model: str = "toy", rows_seen: int = 1) -> None:
        """An instance has run so many batches of each of these rows, out of requests of one row each."""
        now_s = time.time()
        requests, ran = ShapeSketch(), ShapeSketch()
        for rows in batches:
            for _ in range(times):
                ran.add((rows, 4), now_s)
                requests.add((rows_seen, 4), now_s)
        counted = MethodTraffic(
            dims=("batch", "seq"), requests=counts_of(requests, now_s), batches=counts_of(ran, now_s)
        )
        record = TrafficRecord(model=model, written_s=now_s, methods={"predict": counted})
        LocalStore(self.toy.store).put(record_path(model, instance), encode_record(record))

    def forget(self) -> None:
        """No instance has counted anything."""
        store = LocalStore(self.toy.store)
        for entry in list(store.entries("traffic")):
            store.delete(entry.path)

    @property
    def target(self) -> Target:
        """What there is for this kind of machine."""
        (target,) = survey(open_store(self.toy.settings)).named("toy").targets.values()
        return target

    def measure(self, cost_us: float) -> None:
        """Let every row take so long, whatever this machine measured while others used it."""
        store, target = open_store(self.toy.settings), self.target
        specs = tuple(
            msgspec.structs.replace(spec, cost_us=cost_us * spec.bucket["batch"]) for spec in target.executables
        )
        version = survey(store).named("toy").manifest.version
        path = target_path("toy", version, Fingerprint(target.fingerprint).digest)
        store.put(path, encode(msgspec.structs.replace(target, executables=specs)))

    @property
    def batches(self) -> list[int]:
        return sorted(spec.bucket["batch"] for spec in self.target.executables if not spec.cpu_lane_only)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    Toy(folder).publish(sizes=(1, 2, 4))
    return folder


@pytest.fixture
def world(published: Path, capsys: pytest.CaptureFixture[str]) -> World:
    found = World(published, capsys)
    found.forget()
    found.measure(100.0)
    return found


def test_without_enough_traffic_nothing_is_fitted_and_it_says_how_much_there_is(world: World) -> None:
    outcome = world.look()
    assert outcome.status == 1
    assert "predict: 0 requests were seen, needed: 200" in outcome.err
    world.count("a", 3, times=150)
    assert "predict: 150 requests were seen, needed: 200" in world.look().err


def test_what_instances_counted_is_fitted_and_shown_beside_other_plans(world: World, tmp_path: Path) -> None:
    world.count("a", 3, times=300)
    world.count("b", 1, times=100)
    LocalStore(world.toy.store).put(record_path("toy", "garbage"), b"\x00garbage")
    outcome = world.look("--plot", str(tmp_path / "plan.svg"))
    assert outcome.status == 0
    assert "400 requests, 400 batches, counted by 2 instances" in outcome.out
    for plan in ("today", "powers of two", "as many powers of two", "fitted"):
        assert plan in outcome.out
    assert "batch=3: seq=4" in outcome.out
    assert "1 records of traffic could not be read" in outcome.out
    assert (tmp_path / "plan.svg").read_text().startswith("<svg ")
    assert world.batches == DECLARED, "nothing is published unless that is asked for"


def test_as_json_it_has_every_plan_and_what_it_is_about(world: World) -> None:
    world.count("a", 3)
    found = world.json("--method", "predict", "--count", "2")
    (method,) = found["methods"]
    assert (found["model"], found["instances"], found["unread"], found["compiled"]) == ("toy", 1, 0, 0)
    assert method["requests"] == pytest.approx(250, rel=1e-3)
    by_name = {plan["name"]: plan for plan in method["plans"]}
    assert [bucket["batch"] for bucket in by_name["today"]["buckets"]] == DECLARED
    assert [bucket["batch"] for bucket in by_name["fitted"]["buckets"]] == [1, 4], (
        "there may be two, and both have to be"
    )
    assert by_name["today"]["padding"] == pytest.approx(1 - 3 / 4)


def test_shapes_can_come_from_a_file(world: World, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("batch,seq,weight\n3,4,500\n")
    fitted = next(plan for plan in world.json("--trace", str(trace))["methods"][0]["plans"] if plan["name"] == "fitted")
    assert {"batch": 3, "seq": 4} in fitted["buckets"]
    trace.write_text("rows\n3\n")
    assert "its columns are rows; 'seq' is missing" in world.look("--trace", str(trace)).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "absent"), "method 'absent' is not one of predict"),
        (("--fingerprint", "zz"), "0 kinds of machine begin with zz, of those that toy/"),
        (("--apply",), "--fingerprint is not allowed with --apply"),
        (("--count", "1"), "the number of buckets is 1, allowed: 2 or more"),
        (("--plot", "/absent/plan.svg"), "No such file"),
    ],
)
def test_what_is_not_allowed_is_told_in_one_line(world: World, arguments: tuple[str, ...], message: str) -> None:
    world.count("a", 3)
    outcome = world.look(*arguments)
    assert outcome.status == 1
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_model_or_an_argument_that_does_not_exist_is_refused(world: World) -> None:
    assert "'absent' is not published; there is toy@" in world.look(model="absent").err
    with pytest.raises(SystemExit):
        world.look("--gain", "2")
    assert "got '2'; allowed: a number, 0 to 1" in world.capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_is_published_kept_and_taken_back(world: World) -> None:
    world.count("a", 1, 3)
    found = json.loads(world.run("--json", "--apply").out)
    (method,) = found["methods"]
    assert world.batches == [1, 3, 4]
    assert (method["applied"], found["compiled"]) == (True, 1)
    assert method["measured_us"] > 0
    assert world.target.plans_by_method["predict"].observations == pytest.approx(500, rel=1e-3)

    assert "nothing is predicted to take less than today's plan" in world.run("--apply").out, "it is today's now"
    world.toy.publish(sizes=(1, 2, 4))
    assert world.batches == [1, 3, 4]

    outcome = world.run(command="reset")
    assert "predict as declared again, 0 executables compiled" in outcome.out
    assert world.batches == DECLARED
    assert "has no such fitted plan" in world.run(command="reset").err


@pytest.mark.slow
def test_by_itself_a_plan_is_published_only_after_several_looks(world: World) -> None:
    world.count("a", 1, 3)
    try:
        few = ("--watch", "--every", "0.01", "--gain", "0.1", "--rest-hours", "0")
        seen = world.run(*few, "--looks", "3", "--times", "2")
        assert (seen.status, world.batches) == (0, DECLARED)
        assert "(2 of 3 looks)" in seen.err
        seen = world.run(*few, "--looks", "2", "--times", "2")
        assert world.batches == [1, 3, 4]
        assert "predict: another plan is published, a batch takes" in seen.err
        world.count("a", 1, 2)
        world.measure(100.0)
        seen = world.run("--watch", "--every", "0.01", "--gain", "0.1", "--looks", "1", "--times", "1")
        assert "another plan would save" in seen.err
        assert world.batches == [1, 3, 4], "the present one is younger than a day"
    finally:
        world.run(command="reset")


@pytest.mark.slow
def test_a_look_at_too_little_traffic_does_not_end_it_but_what_cannot_be_does(world: World) -> None:
    seen = world.run("--watch", "--every", "0.01", "--times", "2")
    assert seen.status == 0
    assert "look 2: predict: 0 requests were seen" in seen.err
    assert world.run("--watch", "--every", "0.01", "--method", "absent").status == 1


class Looking(InstanceProcess):
    """An instance that looks at its store often."""

    command = (sys.executable, "-m", "tests.warmpool.odd_instance")

    def bucket(self, rows: int) -> str:
        """Where rows of four ones run, each of which the model makes twice their sum of."""
        tensor = wire.Tensor("FP32", (rows, 4), np.ones((rows, 4), np.float32).tobytes())
        found = inferred(self.infer_reply("toy", {"x": tensor}))
        assert found.outputs["output"].tolist() == [8.0] * rows
        return str(found.parameters["bucket"])


@pytest.mark.slow
def test_what_one_instance_was_sent_another_one_that_runs_is_fitted_to(world: World, tmp_path: Path) -> None:
    trust = ("--trusted-keys", str(world.toy.folder / "key.pub"))
    with Looking(world.toy.store, tmp_path / "first", *trust) as instance:
        instance.wait_warm()
        assert {instance.bucket(3) for _ in range(250)} == {"batch=4,seq=4"}
    with Looking(world.toy.store, tmp_path / "second", *trust) as instance:
        instance.wait_warm()
        try:
            assert world.run("--apply").status == 0
            wait_until(lambda: instance.bucket(3) == "batch=3,seq=4", 120.0)
            wait_until(lambda: instance.lane("primary")["planned"] == 3)
        finally:
            world.run(command="reset")
        wait_until(lambda: instance.bucket(3) == "batch=4,seq=4", 120.0)
