"""What is missing for an instance's lanes, and what for: on a store of versions that nobody could run."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from cache.errors import StoreUnavailable
from tests.warmpool.cared_store import CPU, OLDER, CaredStore
from tests.warmpool.served import SEQ, method, tensor
from warmpool.batcher import Batcher
from warmpool.catalog import read_catalog
from warmpool.compiling.lacking import Lacking
from warmpool.dataplane import DataPlane
from warmpool.holdings import Holdings
from warmpool.load_plan import plan_loads
from warmpool.traffic import Traffic
from warmpool.traffic_record import encode_record

PREDICT = "predict"


class Looking:
    """An instance that serves what a store has, on lanes of these kinds of machine."""

    def __init__(self, cared: CaredStore, **machines: Any) -> None:
        self.cared = cared
        self.dataplane = DataPlane(Batcher(100, lambda *_: None))
        self.dataplane.catalog = read_catalog(cared.store)
        self.lanes: Any = [SimpleNamespace(name=name, mode="jaxlib", held=Holdings()) for name in machines]
        self.lacking = Lacking(cared.store, self.lanes, self.dataplane, machines)

    def found(self) -> list[Any]:
        """The gaps that belong to no lane of its own kind, in order."""
        return [gap for gap, _ in self.lacking.look()()]

    def sizes(self) -> list[int]:
        """Batch sizes of what the primary lane lacks, in order."""
        return [gap.bucket["batch"] for gap in self.found() if not gap.ladder]

    def method(self, model: str = "toy") -> Any:
        return self.dataplane.catalog.models[model].methods[PREDICT]

    def load(self, lane: int, machine: Any) -> None:
        """Let a lane begin to hold what the store has for it."""
        models = self.dataplane.catalog.models.values()
        plan = plan_loads(self.cared.store, models, machine, verified={}, ladder_only=lane != 0)
        self.lanes[lane].held.begin(plan)


@pytest.fixture
def cared(tmp_path):
    return CaredStore(tmp_path)


def test_for_a_kind_of_machine_of_which_there_is_nothing_everything_is_missing_the_minimum_first(cared):
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=OLDER, cpu=OLDER)
    assert looking.sizes()[0] == 1
    assert sorted(looking.sizes()) == [1, 2, 4, 8]
    for gap in looking.found():
        assert (gap.model, gap.version, gap.fingerprint) == ("toy", "1", OLDER.digest)
        assert (gap.batch, gap.place.method, gap.place.bucket) == ("batch", PREDICT, f"batch={gap.bucket['batch']}")
        assert gap.minimum == (gap.bucket["batch"] == 1)
        assert not gap.told
    keys = {gap.key for gap in looking.found()}
    assert len(keys) == len(looking.found())


def test_what_is_listed_and_stored_is_not_missing(cared):
    cared.publish(machines=[CPU], sizes=(1, 2, 4))
    assert Looking(cared, primary=CPU, cpu=CPU).sizes() == [8]


def test_a_lane_that_has_not_said_what_it_is_lacks_nothing_yet(cared):
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=OLDER)
    looking.lacking = Lacking(cared.store, looking.lanes, looking.dataplane, {})
    assert looking.found() == []


@pytest.mark.parametrize("size", [2, 4, 8])
def test_what_callers_of_this_instance_sent_decides(cared, size):
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=OLDER, cpu=OLDER)
    for _ in range(5):
        looking.dataplane.traffic.saw(looking.method(), {"batch": size})
    assert looking.sizes()[:2] == [1, size]


def test_what_others_left_word_of_counts_too(cared):
    """An instance that has just begun has seen nothing itself."""
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=OLDER, cpu=OLDER)
    another = Traffic()
    for _ in range(5):
        another.saw(looking.method(), {"batch": 2})
    for path, record in another.records().items():
        cared.store.put(path, encode_record(record))
    assert looking.sizes()[:2] == [1, 2]


def test_traffic_of_other_dimensions_says_nothing(cared):
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=OLDER, cpu=OLDER)
    before = looking.sizes()
    strange = method([tensor("x", "int32", "seq")], [tensor("y", "int32", "seq")], model="toy", dims=(SEQ,))
    for _ in range(5):
        looking.dataplane.traffic.saw(strange, {"seq": 2})
    assert looking.sizes() == before


def test_a_cpu_lane_beside_another_kind_lacks_its_ladder_alone(cared):
    cared.publish(machines=[CPU])
    found = Looking(cared, primary=CPU, cpu=OLDER).found()
    ladder = [gap for gap in found if gap.fingerprint == OLDER.digest]
    assert {gap.bucket["batch"] for gap in ladder} == {1, 8}
    assert all(gap.ladder for gap in ladder)


def test_what_a_lane_knows_and_cannot_have_has_been_told(cared):
    cared.publish(machines=[CPU], sizes=(1, 2, 4, 8))
    (path, *_) = cared.executables(CPU)
    cared.bottom.delete(path)
    looking = Looking(cared, primary=CPU, cpu=CPU)
    assert [gap.told for gap in looking.found() if not gap.ladder] == [False]
    looking.load(0, CPU)
    assert [gap.told for gap in looking.found() if not gap.ladder] == [True]


def test_run_times_that_were_measured_are_what_gains_are_reckoned_with(cared):
    cared.publish(machines=[CPU], sizes=(1, 2, 4))
    looking = Looking(cared, primary=CPU, cpu=CPU)
    looking.load(0, CPU)
    (gap,) = [one for one in looking.found() if not one.ladder]
    assert gap.us_an_element == 0.5  # each takes 1 us: of 1, 1/2 and 1/4 the median


def test_a_store_that_is_away_is_not_a_store_in_which_everything_is_missing(cared):
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=CPU)
    shutil.rmtree(cared.bottom.root / "models")
    with pytest.raises(StoreUnavailable, match="nothing is published in it any more"):
        looking.found()


def test_jax_has_to_say_what_a_lane_is_that_it_runs_in(cared):
    cared.publish(machines=[CPU])
    looking = Looking(cared, primary=CPU, cpu=CPU)
    assert not looking.lacking.accelerator
    looking.lanes[0].mode = "jax"
    assert looking.lacking.accelerator


def test_another_look_is_due_once_it_would_be_about_something_else(cared):
    cared.publish(machines=[CPU])
    machines = {"primary": CPU}
    looking = Looking(cared, **machines)
    looking.lacking = Lacking(cared.store, looking.lanes, looking.dataplane, machines)
    before = looking.lacking.concerns()
    assert looking.lacking.concerns() == before
    machines["cpu"] = OLDER
    with_lane = looking.lacking.concerns()
    assert with_lane != before
    cared.publish("other", machines=[CPU])
    looking.dataplane.catalog = read_catalog(cared.store)
    assert looking.lacking.concerns() != with_lane
