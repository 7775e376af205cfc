"""What a lane is to load: all that was published for its kind of machine, and nothing that cannot be."""

from __future__ import annotations

import logging
import threading

import pytest

from cache.errors import StoreUnavailable
from cache.fetching import DOWNLOADS_PARALLEL
from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from tests.warmpool.served import tensor
from tests.warmpool.stored_version import PREDICT, WEIGHTS, executable, put, target
from warmpool import manifest as stored
from warmpool import messages
from warmpool.arena import regions
from warmpool.catalog import read_catalog
from warmpool.load_plan import CODE_BYTES_A_STORED_BYTE, NOT_PUBLISHED, SPARE_BYTES, plan_loads
from warmpool.manifest import MemorySpec, MethodSpec
from warmpool.residency import Footprint

HERE = Fingerprint({"machine": "here"})


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def put_target(store, name, *executables, files=True):
    store.put(stored.target_path(name, "1", HERE.digest), stored.encode(target(*executables)))
    for spec in executables if files else ():
        store.put(stored.executable_path(spec.key), b"artifact")


def plan(store, *, verified=None, ladder_only=False, far=False):
    models = read_catalog(store).models.values()
    return plan_loads(store, models, HERE, verified=verified or {}, ladder_only=ladder_only, far=far)


def keys(planned):
    return [item.key for item in planned.work if isinstance(item, messages.Load)]


def test_weights_of_every_model_come_first_then_minimum_sets_then_the_rest(store):
    for name in ("a", "b"):
        put(store, name)
        put_target(store, name, executable(f"{name}1"), executable(f"{name}2", minimum=True))
    planned = plan(store, verified={"a/1": "identity"})
    first, second, *loads = planned.work
    assert isinstance(first, messages.Weights)
    assert isinstance(second, messages.Weights)
    assert [(item.version, item.verified) for item in (first, second)] == [("a/1", "identity"), ("b/1", "")]
    assert first.manifest_path == str(store.local_path("models/a/1/manifest.json"))
    assert [item.key for item in loads if isinstance(item, messages.Load)] == ["a2", "b2", "a1", "b1"]
    assert (planned.missing, planned.absent) == ({}, {})


def test_an_executable_is_planned_with_where_its_tensors_lie(store):
    put(store)
    put_target(store, "tiny", executable("k", minimum=True, bucket={"batch": 2, "seq": 4}, cost_us=7.5))
    planned = plan(store)
    (number,) = planned.loadables
    loadable = planned.loadables[number]
    inputs, outputs = (("int32", (2, 4)), ("float32", ())), (("int8", (2, 9)),)
    assert loadable.message == messages.Load(
        executable=number,
        version="tiny/1",
        artifact_path=str(store.local_path("executables/k")),
        key="k",
        inputs=inputs,
        outputs=outputs,
        bytes_max=2 * 1 + SPARE_BYTES,
        made_of={"program": "p", "bucket.batch": "2", "bucket.seq": "4"},
    )
    assert [*loadable.inputs, *loadable.outputs] == regions([*inputs, *outputs])
    assert (loadable.candidate.id, loadable.candidate.bucket, loadable.candidate.cost_us) == (
        number,
        {"batch": 2, "seq": 4},
        7.5,
    )
    assert (loadable.minimum, loadable.title) == (True, "tiny:predict batch=2,seq=4")


def test_what_an_executable_takes_is_as_it_was_measured_and_else_more_rather_than_less(store):
    """Its tensors lie in 32 + 4 bytes, and in 18 from the next multiple of 64 on."""
    put(store)
    measured = MemorySpec(code=7000, temp=500, arguments=40, outputs=18)
    kinds = {"measured": measured, "size": MemorySpec(temp=500), "before": None}
    specs = [executable(key, bucket={"batch": 2, "seq": 4}, size_bytes=100, memory=kinds[key]) for key in kinds]
    put_target(store, "tiny", *specs)
    planned = plan(store)
    tensors = 64 + 64 + 18
    stored = 100 * CODE_BYTES_A_STORED_BYTE
    assert [one.footprint for one in planned.loadables.values()] == [
        Footprint("tiny/1", 7000, 500 + tensors),
        Footprint("tiny/1", stored, 500 + tensors),
        Footprint("tiny/1", stored, tensors + tensors),
    ]
    assert planned.weights_bytes == {"tiny/1": len(WEIGHTS)}
    assert planned.end == 3


def test_numbers_go_on_where_another_plan_ends_whatever_became_of_its_executables(store):
    put(store)
    put_target(store, "tiny", executable("a"), executable("b"))
    models = read_catalog(store).models.values()
    planned = plan_loads(store, models, HERE, verified={}, ladder_only=False, first=5)
    assert (sorted(planned.loadables), planned.end) == ([5, 6], 7)


def test_the_cpu_lane_holds_the_ladder_alone(store):
    put(store)
    put_target(store, "tiny", executable("a", ladder=True), executable("b"), executable("c", ladder=True))
    assert keys(plan(store)) == ["a", "b", "c"]
    assert keys(plan(store, ladder_only=True)) == ["a", "c"]


def test_what_is_for_the_cpu_lane_alone_the_primary_one_does_not_hold(store):
    """Of a target of before it holds the ladder, too."""
    put(store)
    fast = {"ladder": True, "cpu_lane_only": True}
    put_target(store, "tiny", executable("a", minimum=True), executable("b", **fast), executable("c", ladder=True))
    assert keys(plan(store)) == ["a", "c"]
    assert keys(plan(store, ladder_only=True)) == ["b", "c"]


def test_a_model_of_which_there_is_a_ladder_and_nothing_else_yet_is_missing_for_the_primary_lane(store):
    put(store)
    put_target(store, "tiny", executable("a", minimum=True, ladder=True, cpu_lane_only=True))
    assert plan(store).missing == {"tiny/1": NOT_PUBLISHED}
    assert (plan(store, ladder_only=True).missing, keys(plan(store, ladder_only=True))) == ({}, ["a"])


def test_a_model_that_was_not_published_for_this_machine_is_missing_and_the_others_are_planned(store):
    put(store, "elsewhere")
    put(store, "here")
    put_target(store, "here", executable("k"))
    planned = plan(store)
    assert planned.missing == {"elsewhere/1": NOT_PUBLISHED}
    assert keys(planned) == ["k"]
    assert [item.version for item in planned.work if isinstance(item, messages.Weights)] == ["here/1"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "targets"),
        (b"{}", "targets"),
        (stored.encode(target(executable("k", method="unheard"))), "'unheard'"),
        (stored.encode(target(executable("k", bucket={"batch": 1}))), "batch=1"),
        (stored.encode(target(executable("k", bucket={"batch": 1, "seq": 16, "x": 1}))), "batch=1,seq=16,x=1"),
        (stored.encode(target(executable("k", bucket={"batch": 9, "seq": 16}))), "batch=9,seq=16"),
    ],
)
def test_a_target_that_does_not_fit_its_manifest_is_missing_and_the_others_are_planned(store, content, reason):
    """An executable for more than the manifest's largest bucket would not fit into the arena."""
    put(store, "bad")
    put(store, "good")
    put_target(store, "good", executable("g"))
    store.put(stored.target_path("bad", "1", HERE.digest), content)
    store.put(stored.executable_path("k"), b"artifact")
    planned = plan(store)
    assert list(planned.missing) == ["bad/1"]
    assert reason in planned.missing["bad/1"]
    assert keys(planned) == ["g"]


def test_an_executable_whose_file_is_missing_is_absent_with_the_reason_and_the_rest_is_planned(store, caplog):
    put(store)
    put_target(store, "tiny", executable("gone"), files=False)
    put_target(store, "tiny", executable("gone"), executable("k"))
    store.local_path("executables/gone").unlink()
    with caplog.at_level(logging.CRITICAL):
        planned = plan(store)
    assert keys(planned) == ["k"]
    assert planned.absent == {0: "nothing is stored under 'executables/gone'"}
    assert sorted(planned.loadables) == [0, 1]


def test_a_method_without_dimensions_is_planned(store):
    fixed = MethodSpec(
        programs={"*": "p"}, symbolic=True, inputs=(tensor("x", "int8", 3),), outputs=(tensor("y", "int8", 3),)
    )
    put(store, methods={"predict": PREDICT, "fixed": fixed})
    put_target(store, "tiny", executable("k", method="fixed", bucket={}))
    assert [loadable.title for loadable in plan(store).loadables.values()] == ["tiny:fixed *"]


class Far(LocalStore):
    """A store that gives no artifact before it was asked for so many; it keeps the order."""

    def __init__(self, root, wanted):
        super().__init__(root)
        self.asked = []
        self._wanted = wanted
        self._enough = threading.Condition()

    def local_path(self, path):
        if path.startswith("executables/"):
            with self._enough:
                self.asked.append(path)
                self._enough.notify_all()
                assert self._enough.wait_for(lambda: len(self.asked) >= self._wanted, 30)
        return super().local_path(path)


def test_where_artifacts_have_to_be_downloaded_many_are_asked_for_at_once_the_minimum_set_first(store):
    put(store)
    specs = [executable(f"k{index}", minimum=index >= 20) for index in range(24)]
    put_target(store, "tiny", *specs)
    far = Far(store.root, DOWNLOADS_PARALLEL)
    planned = plan(far, far=True)
    assert {f"executables/k{index}" for index in range(20, 24)} <= set(far.asked[:DOWNLOADS_PARALLEL])
    assert len(far.asked) == 24
    assert keys(planned) == keys(plan(store)) == [f"k{index}" for index in (20, 21, 22, 23, *range(20))]


class Elsewhere(LocalStore):
    """A store that says where it is when something cannot be had."""

    def get(self, path, *, bytes_max=None):
        if "/targets/" in path and "tiny" not in path:
            raise StoreUnavailable(f"{self.root} is stale")
        return super().get(path, bytes_max=bytes_max)

    def local_path(self, path):
        if path.startswith("executables/"):
            raise StoreUnavailable(f"no copy of it can be kept in {self.root}")
        return super().local_path(path)


def test_where_a_store_is_that_cannot_be_read_is_told_to_the_log_alone(store, caplog):
    for name in ("tiny", "other"):
        put(store, name)
        put_target(store, name, executable("k"))
    with caplog.at_level(logging.WARNING):
        planned = plan(Elsewhere(store.root))
    away = "the store cannot be read or written now; the log says why"
    assert (planned.absent, planned.missing) == ({0: away}, {"other/1": away})
    said = {record.message: vars(record)["reason"] for record in caplog.records}
    assert said == {
        "executable is missing": f"no copy of it can be kept in {store.root}",
        "target cannot be read": f"{store.root} is stale",
    }


def test_what_cannot_be_downloaded_is_absent_with_the_reason_and_the_rest_is_planned(store, caplog):
    put(store)
    put_target(store, "tiny", executable("gone"), executable("no path"), executable("k"), files=False)
    store.put(stored.executable_path("k"), b"artifact")
    with caplog.at_level(logging.CRITICAL):
        planned = plan(store, far=True)
    assert keys(planned) == ["k"]
    assert planned.absent == plan(store).absent
    assert sorted(planned.absent) == [0, 1]
    assert planned.absent[0] == "nothing is stored under 'executables/gone'"
