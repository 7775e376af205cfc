"""What comes back into a lane's memory and what goes for it, with a lane that keeps account of what it really has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warmpool.served import doubling
from warmpool import messages, version_progress
from warmpool.catalog import ServedMethod
from warmpool.holdings import Holdings
from warmpool.lane_memory import MARKED_S, SHORTAGES_MAX, SHORTAGES_S, LaneMemory
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.residency import GAIN, LOAD_US, RUNS_AT_ONCE_MAX, UNUSED_S_MAX, Footprint
from warmpool.scheduling.cost_model import CostModel
from warmpool.selection import Candidate

A, B = doubling(model="a"), doubling(model="b")
WEIGHTS = {"a/1": 50, "b/1": 40}
LOAD_NS = 10_000_000


def planned(
    *specs: tuple[ServedMethod, int, int, bool],
    run_bytes: int = 0,
    first: int = 0,
    costs_us: Mapping[int, float] | None = None,
) -> LoadPlan:
    """Executables of (method, rows, bytes, minimum), after the weights of their models; 10 ms a row, or as given."""
    plan = LoadPlan(end=first)
    for method in {one[0].model: one[0] for one in specs}.values():
        version = f"{method.model}/1"
        plan.weights[version] = messages.Weights(version=version, manifest_path="", weights_path="", verified="")
        plan.weights_bytes[version] = WEIGHTS[version]
        plan.work.append(plan.weights[version])
    for method, rows, held_bytes, minimum in specs:
        number, plan.end = plan.end, plan.end + 1
        version = f"{method.model}/1"
        load = messages.Load(
            executable=number, version=version, artifact_path="", key=f"k{number}", inputs=(), outputs=(), bytes_max=9
        )
        plan.work.append(load)
        plan.loadables[number] = Loadable(
            candidate=Candidate(number, {"batch": rows}, (costs_us or {}).get(rows, 1e4 * rows)),
            method=method,
            message=load,
            minimum=minimum,
            inputs=[],
            outputs=[],
            footprint=Footprint(version, held_bytes, run_bytes, minimum),
        )
    return plan


class Lane:
    """What LaneProxy does with a lane's memory, and a lane that does what it is told when the test lets it.

    It notices what must never happen: more memory than the budget, a run of what is not loaded, a load without its
    weights, something unloaded that runs, weights that go while something needs them.
    """

    def __init__(
        self,
        bytes_max: int,
        *specs: tuple[ServedMethod, int, int, bool],
        run_bytes: int = 0,
        costs_us: Mapping[int, float] | None = None,
    ) -> None:
        self.held = Holdings()
        self.memory = LaneMemory(self.held, CostModel())
        self.held.bytes_max = bytes_max
        self.specs, self.run_bytes, self.costs_us = specs, run_bytes, costs_us
        self.now_s = 0.0
        self.in_flight: list[messages.Work] = []
        self.loaded: dict[int, Footprint] = {}
        self.mapped: set[str] = set()
        self.running: int | None = None
        self.begin()

    def begin(self) -> None:
        self.held.begin(planned(*self.specs, run_bytes=self.run_bytes, costs_us=self.costs_us))
        self._send()

    @property
    def warm(self) -> set[int]:
        return {candidate.id for candidates in self.held.warm.values() for candidate in candidates}

    @property
    def evicted(self) -> set[int]:
        return {number for number in self._plan.loadables if self.held.state(number) == "evicted"}

    @property
    def _plan(self) -> LoadPlan:
        assert self.held.load_plan is not None
        return self.held.load_plan

    def ask(self, method: ServedMethod, rows: int) -> bool:
        there = self.memory.ask(method, {"batch": rows})
        self.make_room()
        return there

    def run(self, number: int, rows: int, waiting_rows: int = 0) -> None:
        """A batch, up to its end; more rows wait that could have run with it."""
        self.begin_run(number, rows, waiting_rows)
        self.end_run()

    def begin_run(self, number: int, rows: int, waiting_rows: int = 0) -> None:
        assert self.running is None
        assert number in self.warm
        assert number in self.loaded, "what is warm is loaded"
        self.running = number
        self.memory.runs(number, {"batch": rows}, waiting_rows, self.now_s)
        self.make_room()

    def end_run(self) -> None:
        self.running = None
        self.make_room()

    @property
    def busy(self) -> set[int]:
        return set() if self.running is None else {self.running}

    def make_room(self) -> None:
        self.memory.make_room(self.busy, self.now_s)
        self._send()

    def settle(self, place: int = 0, *, out_of_memory: bool = False) -> messages.Work | None:
        """Let the lane do one of the things that it was told to."""
        if not self.in_flight:
            return None
        work = self.in_flight.pop(place % len(self.in_flight))
        self.held.settle(self._done(work, out_of_memory=out_of_memory), self.now_s)
        if out_of_memory and isinstance(work, messages.Load):
            self.memory.short(self.held.loadable(work.executable), "too small", self.now_s)
        self.make_room()
        return work

    def settle_all(self) -> list[messages.Work]:
        done = []
        while work := self.settle():
            done.append(work)
        return done

    def die(self) -> None:
        self.held.forget(-11)
        self.memory.forget()
        self.in_flight, self.loaded, self.mapped, self.running = [], {}, set(), None
        self.begin()

    def _send(self) -> None:
        self.in_flight += self.held.loads.take(running=self.busy)
        coming = {work.executable for work in self.in_flight if isinstance(work, messages.Load)}
        taken = [*self.loaded.values(), *(self.footprint(number) for number in coming - self.loaded.keys())]
        mapping = {work.version for work in self.in_flight if isinstance(work, messages.Weights)}
        runs = sorted((one.run_bytes for one in taken), reverse=True)[:RUNS_AT_ONCE_MAX]
        weights = sum(WEIGHTS[version] for version in self.mapped | mapping)
        if self.held.bytes_max:
            assert weights + sum(one.held_bytes for one in taken) + sum(runs) <= self.held.bytes_max, self.in_flight
        assert len(self.in_flight) <= messages.LOADS_IN_FLIGHT_MAX
        for work in self.in_flight:
            if isinstance(work, messages.Load):
                assert work.version in self.mapped | mapping
            if isinstance(work, messages.Unload):
                assert work.executable != self.running
            if isinstance(work, messages.Unmap):
                assert not [number for number, one in self.loaded.items() if one.version == work.version]

    def footprint(self, number: int) -> Footprint:
        return planned(*self.specs, run_bytes=self.run_bytes).loadables[number].footprint

    def _done(self, work: messages.Work, *, out_of_memory: bool) -> messages.Settled:
        match work:
            case messages.Weights():
                self.mapped.add(work.version)
                return messages.Mapped(version=work.version, stages=[], identity="file")
            case messages.Load() if out_of_memory:
                return messages.Cold(executable=work.executable, reason="too small", out_of_memory=True)
            case messages.Load():
                self.loaded[work.executable] = self.footprint(work.executable)
                return messages.Warm(executable=work.executable, stages=[messages.Stage("load", 0, LOAD_NS)])
            case messages.Unload():
                self.loaded.pop(work.executable, None)
                return messages.Unloaded(executable=work.executable)
            case messages.Unmap():
                self.mapped.remove(work.version)
                return messages.Unmapped(version=work.version)


def kinds(done: Iterable[messages.Work]) -> list[Any]:
    return [
        (type(work).__name__, work.version if isinstance(work, messages.Weights | messages.Unmap) else work.executable)
        for work in done
    ]


# One model, of which half fits: 0 is the minimum set of one row, then 2, 4, and 8 rows at once

ONE_MODEL = ((A, 1, 10, True), (A, 2, 10, False), (A, 4, 10, False), (A, 8, 10, False))


def test_what_does_not_fit_stays_out_and_is_no_failure():
    lane = Lane(80, *ONE_MODEL)
    lane.settle_all()
    assert (lane.warm, lane.evicted) == ({0, 1, 2}, {3})
    assert lane.held.loaded
    assert (lane.held.cold_reasons, lane.memory.evictions) == ({}, 0)
    assert lane.held.may_cover(A, {"batch": 8})
    assert version_progress.holds_minimum(lane.held, "a/1")


def test_what_is_asked_for_comes_and_what_is_worth_least_goes_for_it():
    lane = Lane(80, *ONE_MODEL)
    lane.settle_all()
    lane.run(2, 4)
    assert lane.ask(A, 7)
    assert 1 not in lane.warm, "no batch gets it from now on"
    assert kinds(lane.settle_all()) == [("Unload", 1), ("Load", 3)]
    assert (lane.warm, lane.evicted) == ({0, 2, 3}, {1})
    assert (lane.memory.evictions, lane.memory.reloads) == (1, 1)


def test_what_is_asked_for_twice_or_is_there_comes_once():
    lane = Lane(80, *ONE_MODEL)
    lane.settle_all()
    for _ in range(3):
        assert lane.ask(A, 7)
    assert lane.ask(A, 1)
    assert len(kinds(lane.settle_all())) == 2
    assert lane.ask(A, 8)
    assert lane.settle_all() == []
    assert not lane.ask(A, 9), "nothing covers it"


def test_of_those_that_cover_a_need_the_cheapest_comes():
    lane = Lane(70, *ONE_MODEL)
    lane.settle_all()
    assert lane.evicted == {2, 3}
    lane.ask(A, 3)
    assert kinds(lane.settle_all()) == [("Unload", 1), ("Load", 2)]


def test_what_runs_does_not_go_and_what_is_asked_for_waits_for_its_end():
    lane = Lane(70, *ONE_MODEL)
    lane.settle_all()
    lane.begin_run(1, 2)
    assert lane.ask(A, 8)
    assert lane.settle_all() == [], "the minimum set is pinned and the other one runs"
    lane.end_run()
    assert kinds(lane.settle_all()) == [("Unload", 1), ("Load", 3)]


def test_nothing_is_loaded_before_what_makes_room_for_it_is_gone():
    lane = Lane(80, *ONE_MODEL, (A, 16, 20, False))
    lane.settle_all()
    lane.ask(A, 16)
    assert kinds(lane.in_flight) == [("Unload", 1), ("Unload", 2)] or kinds(lane.in_flight) == [
        ("Unload", 2),
        ("Unload", 1),
    ]
    lane.settle()
    assert len(lane.in_flight) == 1
    lane.settle()
    assert kinds(lane.in_flight) == [("Load", 4)]


def test_what_waits_to_be_loaded_goes_without_ever_having_come():
    lane = Lane(80, *ONE_MODEL)
    assert kinds(lane.in_flight) == [("Weights", "a/1")]
    lane.ask(A, 8)
    assert kinds(lane.settle_all()) == [("Weights", "a/1"), ("Load", 3), ("Load", 0), ("Load", 1)]
    assert lane.warm == {0, 1, 3}


def test_a_batch_on_a_larger_one_counts_for_what_would_have_been_faster_until_that_comes_back():
    """Also where that which has to go for it runs one batch after the other."""
    lane = Lane(70, *ONE_MODEL)
    lane.settle_all()
    lane.ask(A, 8)
    lane.settle_all()
    assert lane.warm == {0, 3}
    lane.run(3, 8)
    runs = 0
    while 3 in lane.warm:
        lane.now_s += 0.1
        lane.run(3, 2)
        runs += 1
    assert runs == 1, "60 ms were lost, a load takes 10"
    assert kinds(lane.settle_all()) == [("Unload", 3), ("Load", 1)]
    assert lane.warm == {0, 1}


@pytest.mark.parametrize(("waiting_rows", "comes"), [(0, False), (3, False), (28, True)])
def test_a_larger_one_comes_back_where_more_rows_wait_than_fit_and_it_takes_less_for_each(waiting_rows, comes):
    """30 ms for 4 rows, 80 for 32: a run of 7 rows would cost more than one of 4 rows and another of 3."""
    plan = (A, 1, 10, True), (A, 4, 10, False), (A, 32, 10, False)
    lane = Lane(70, *plan, costs_us={1: 20e3, 4: 30e3, 32: 80e3})
    lane.settle_all()
    assert lane.evicted == {2}
    for _ in range(40):
        if 1 in lane.warm:
            lane.run(1, 4, waiting_rows)
    assert (lane.settle_all() != []) is comes
    assert (2 in lane.warm) is comes


def test_an_executable_saves_what_several_runs_of_the_next_best_would_have_taken():
    """8 rows take 40 ms at once, and 84 in four runs of the one of 2 rows; 160 in eight of the smallest."""
    plan = (A, 1, 10, True), (A, 8, 10, False), (A, 2, 10, False), (A, 16, 10, False)
    lane = Lane(80, *plan, costs_us={1: 20e3, 8: 40e3, 2: 21e3, 16: 1e6})
    lane.settle_all()
    lane.run(1, 8)
    lane.run(2, 2)
    lane.ask(A, 16)
    assert kinds(lane.settle_all()) == [("Unload", 2), ("Load", 3)], "it saved 19 ms, the other one 44"


def test_a_batch_on_what_is_best_brings_nothing_back():
    lane = Lane(80, *ONE_MODEL)
    lane.settle_all()
    for _ in range(200):
        lane.run(2, 4)
        lane.run(1, 2)
    assert lane.settle_all() == []
    assert lane.evicted == {3}


def test_where_everything_fits_nothing_is_counted_and_nothing_goes():
    lane = Lane(1000, *ONE_MODEL)
    lane.settle_all()
    lane.run(3, 1)
    for _ in range(1000):
        lane.memory.runs(3, {"batch": 1}, 0, 0.0)
    assert not lane.memory.undecided
    assert (lane.evicted, lane.memory.reloads) == (set(), 0)


# Two models, of which one fits at a time

TWO_MODELS = ((A, 1, 10, True), (B, 1, 10, True), (A, 4, 10, False), (B, 4, 10, False))


def test_a_batch_that_another_lane_ran_counts_only_where_nothing_warm_would_have_done():
    lane = Lane(75, *TWO_MODELS)
    lane.settle_all()
    lane.memory.passes(A, {"batch": 8}, 1e9)
    before = lane.memory.undecided
    lane.memory.passes(B, {"batch": 1}, 1e9)
    assert (before, lane.memory.undecided) == (False, True)
    lane.make_room()
    lane.settle_all()
    assert lane.warm == {1}


def test_a_model_that_nobody_calls_goes_with_its_weights_and_comes_back_with_them():
    lane = Lane(75, *TWO_MODELS)
    lane.settle_all()
    assert (lane.warm, lane.mapped) == ({0, 2}, {"a/1"})
    assert version_progress.holds_minimum(lane.held, "b/1"), "it can be had at any time"
    lane.ask(B, 1)
    done = kinds(lane.settle_all())
    assert sorted(done[:2]) == [("Unload", 0), ("Unload", 2)]
    assert done[2:] == [("Unmap", "a/1"), ("Weights", "b/1"), ("Load", 1)]
    assert (lane.warm, lane.mapped) == ({1}, {"b/1"})
    lane.run(1, 1)
    lane.now_s += 1.0
    lane.ask(A, 4)
    assert kinds(lane.settle_all()) == [("Unload", 1), ("Unmap", "b/1"), ("Weights", "a/1"), ("Load", 2)]


def test_what_somebody_waits_for_is_not_sent_away_before_it_ran():
    lane = Lane(75, *TWO_MODELS)
    lane.settle_all()
    lane.ask(B, 1)
    lane.ask(A, 1)
    lane.settle_all()
    assert lane.warm == {1}, "asked for first"
    assert lane.memory.again_s(lane.now_s) == lane.now_s + UNUSED_S_MAX
    lane.run(1, 1)
    assert lane.warm == {1}
    again_s = lane.memory.again_s(lane.now_s)
    assert again_s == pytest.approx(lane.now_s + LOAD_NS / 1e9), "as long as its load took"
    lane.now_s = again_s
    lane.make_room()
    lane.settle_all()
    assert lane.warm == {0}


def test_two_models_that_take_turns_load_for_at_most_about_half_of_the_time():
    """Both always have work. A load takes 10 ms, a batch 1."""
    lane = Lane(75, *TWO_MODELS)
    lane.settle_all()
    loading_s = 0.0
    while lane.now_s < 10.0:
        for method in (A, B):
            lane.ask(method, 1)
        done = [work for work in lane.settle_all() if isinstance(work, messages.Load)]
        loading_s += len(done) * LOAD_NS / 1e9
        lane.now_s += len(done) * LOAD_NS / 1e9
        for number in sorted(lane.warm):
            lane.run(number, 1)
            lane.now_s += 0.001
    assert lane.memory.reloads > 100, "neither starves"
    assert loading_s <= 0.55 * lane.now_s


# What is too large, and what is marked


def test_what_can_never_fit_beside_the_minimum_sets_says_so_and_is_not_waited_for():
    lane = Lane(70, *ONE_MODEL, (A, 16, 30, False))
    lane.settle_all()
    assert lane.held.state(4) == "cold"
    assert (
        lane.held.trouble(4) == "it needs 90 bytes with all that has to stay, the lane has 70 (lane_memory_bytes_max)"
    )
    assert not lane.held.may_cover(A, {"batch": 16})
    assert not lane.ask(A, 16)
    assert lane.held.cold_reasons == {}, "nobody has to mend it"


def test_a_minimum_set_that_does_not_fit_is_why_its_model_is_not_ready():
    lane = Lane(55, *ONE_MODEL)
    assert not version_progress.holds_minimum(lane.held, "a/1")
    assert version_progress.why_not(lane.held, "a/1").startswith("a:double batch=1: it needs 60 bytes")
    assert all(reason for _, reason in version_progress.minimum(lane.held, "a/1")), "nothing more is to be waited for"


def test_what_there_was_no_room_for_is_not_used_for_a_while_and_neither_is_what_is_larger():
    lane = Lane(0, *ONE_MODEL)
    lane.settle_all()
    lane.begin_run(2, 4)
    lane.memory.short(lane.held.loadable(2), "no room", lane.now_s)
    lane.end_run()
    assert [lane.held.state(number) for number in range(4)] == ["warm", "warm", "marked", "marked"]
    assert lane.held.trouble(3) == "no room"
    assert not lane.held.may_cover(A, {"batch": 4})
    assert sorted(kinds(lane.settle_all())) == [("Unload", 2), ("Unload", 3)]
    assert lane.memory.again_s(0.0) == MARKED_S
    lane.now_s = MARKED_S
    lane.make_room()
    assert lane.evicted == {2, 3}
    assert lane.memory.again_s(lane.now_s) == math.inf
    lane.ask(A, 3)
    assert kinds(lane.settle_all()) == [("Load", 2)]
    assert (lane.memory.shortages, lane.memory.evictions) == (1, 0)


def test_a_load_for_which_there_was_no_room_is_marked_and_comes_back_if_it_is_a_minimum_set():
    lane = Lane(0, *ONE_MODEL)
    lane.settle()
    lane.settle(out_of_memory=True)
    assert version_progress.why_not(lane.held, "a/1") == "a:double batch=1: too small"
    assert lane.held.cold_reasons == {}
    lane.settle_all()
    assert lane.warm == set(), "all others are at least as large"
    lane.now_s = MARKED_S
    lane.make_room()
    assert kinds(lane.settle_all())[-1] == ("Load", 0)
    assert version_progress.holds_minimum(lane.held, "a/1")


@pytest.mark.parametrize(
    ("at_s", "gone"),
    [
        ([0, 1, SHORTAGES_S], [False, False, True]),
        ([0, 1, SHORTAGES_S + 0.1], [False] * 3),
        ([0, 29, 58, 59], [False] * 3 + [True]),
    ],
)
def test_a_memory_is_gone_once_runs_found_no_room_often_within_a_window(at_s: list[float], gone: list[bool]) -> None:
    lane = Lane(0, *ONE_MODEL)
    found = [lane.memory.ran_short(now_s) for now_s in at_s]
    assert [*map(bool, found)] == gone
    assert {*found} - {""} <= {"it ran out of memory 3 times in 30 s"}
    lane.die()
    assert {lane.memory.ran_short(at_s[-1]) for _ in range(SHORTAGES_MAX - 1)} == {""}, "the next one has its own"


def test_the_next_process_begins_without_marks():
    lane = Lane(0, *ONE_MODEL)
    lane.settle_all()
    lane.memory.short(lane.held.loadable(2), "no room", lane.now_s)
    lane.die()
    lane.settle_all()
    assert lane.warm == {0, 1, 2, 3}


# Retiring, extending, mending


def test_what_is_retired_goes_when_nothing_runs_on_it_and_is_forgotten():
    lane = Lane(0, *ONE_MODEL)
    lane.settle_all()
    lane.begin_run(1, 2)
    lane.held.retire([1, 2])
    lane.make_room()
    assert lane.warm == {0, 3}
    assert lane.settle_all() == [], "it waits for the run"
    lane.end_run()
    assert kinds(lane.settle_all()) == [("Unload", 1), ("Unload", 2)]
    assert not lane.held.knows(1)
    assert lane.held.load_plan is not None
    assert lane.held.load_plan.end == 4, "no number is given again"


def test_what_is_retired_while_it_is_loaded_never_becomes_warm():
    lane = Lane(0, *ONE_MODEL)
    lane.settle()
    assert kinds(lane.in_flight) == [("Load", 0)]
    lane.held.retire([0, 3])
    lane.make_room()
    done = kinds(lane.settle_all())
    assert done[:2] == [("Load", 0), ("Unload", 0)]
    assert ("Load", 3) not in done
    assert (lane.warm, lane.held.warm_count, set(lane.loaded)) == ({1, 2}, 2, {1, 2})


def test_with_the_last_of_a_version_its_weights_go():
    lane = Lane(0, *TWO_MODELS)
    lane.settle_all()
    lane.held.retire([0, 2])
    lane.make_room()
    assert kinds(lane.settle_all()) == [("Unload", 0), ("Unload", 2), ("Unmap", "a/1")]
    assert lane.mapped == {"b/1"}


def test_weights_that_are_being_mapped_for_nobody_any_more_are_unmapped_and_can_be_mapped_again():
    lane = Lane(75, *TWO_MODELS)
    assert kinds(lane.in_flight) == [("Weights", "a/1")]
    lane.held.retire([0, 2])
    lane.make_room()
    assert kinds(lane.settle_all()) == [("Weights", "a/1"), ("Unmap", "a/1")]
    assert lane.ask(B, 1)
    assert kinds(lane.settle_all()) == [("Weights", "b/1"), ("Load", 1)]


def test_a_further_plan_takes_what_room_there_is_and_its_minimum_set_makes_itself_more():
    lane = Lane(115, (A, 1, 10, True), (A, 2, 10, False), (A, 4, 10, False))
    lane.settle_all()
    lane.specs += ((B, 1, 10, True), (B, 4, 10, False))
    more = planned((B, 1, 10, True), (B, 4, 10, False), first=3)
    lane.held.extend(more)
    lane.memory.ask_for_minimum(more.loadables)
    lane.make_room()
    lane.settle_all()
    assert version_progress.holds_minimum(lane.held, "b/1")
    assert lane.mapped == {"a/1", "b/1"}
    assert len(lane.warm) == 2


def test_what_was_cold_and_is_mended_comes_if_there_is_room_and_else_when_it_is_needed(tmp_path):
    lane = Lane(80, *ONE_MODEL)
    lane.settle()
    lane.held.settle(messages.Cold(executable=0, reason="damaged", content="x"), 0.0)
    lane.in_flight.clear()
    lane.make_room()
    lane.settle_all()
    assert lane.warm == {1, 2}
    lane.ask(A, 8)
    lane.settle_all()
    assert lane.warm == {1, 2, 3}
    assert lane.held.retry(0, tmp_path / "mended", "y")
    lane.memory.ask_for_minimum([0])
    lane.make_room()
    lane.now_s += UNUSED_S_MAX
    lane.make_room()
    done = lane.settle_all()
    assert kinds(done)[-1] == ("Load", 0)
    assert isinstance(done[-1], messages.Load)
    assert done[-1].artifact_path == str(tmp_path / "mended")
    assert {0, 3} <= lane.warm | {3}


# Whatever happens

SPECS = st.lists(
    st.tuples(st.sampled_from([A, B]), st.sampled_from([1, 2, 4, 8]), st.integers(5, 30), st.booleans()),
    min_size=2,
    max_size=8,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([A, B]), st.sampled_from([1, 2, 3, 8])),
        st.tuples(st.just("settle"), st.integers(0, 2)),
        st.tuples(st.just("settle"), st.integers(0, 2)),
        st.tuples(st.just("fail"), st.integers(0, 2)),
        st.tuples(st.just("run"), st.integers(0, 7)),
        st.tuples(st.just("end")),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 1.0, MARKED_S])),
        st.tuples(st.just("retire"), st.integers(0, 7)),
        st.tuples(st.just("short")),
        st.tuples(st.just("die")),
    ),
    max_size=60,
)


class Played(Lane):
    """A lane that does a step, if it can be done now."""

    def play(self, kind: str, *rest: Any) -> None:
        getattr(self, f"_{kind}")(*rest)

    def _ask(self, method: ServedMethod, rows: int) -> None:
        planned = self.held.load_plan is not None and f"{method.model}/{method.version}" in self.held.load_plan.weights
        assert (self.ask(method, rows) or not planned) == self.held.may_cover(method, {"batch": rows})

    def _settle(self, place: int) -> None:
        self.settle(place)

    def _fail(self, place: int) -> None:
        self.settle(place, out_of_memory=True)

    def _run(self, place: int) -> None:
        if self.warm and self.running is None:
            number = sorted(self.warm)[place % len(self.warm)]
            self.begin_run(number, self.held.loadable(number).candidate.bucket["batch"])

    def _end(self) -> None:
        self.end_run()

    def _short(self) -> None:
        if self.running is not None and self.held.knows(self.running):
            self.memory.short(self.held.loadable(self.running), "no room", self.now_s)
        self.end_run()

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.make_room()

    def _retire(self, number: int) -> None:
        if self.held.knows(number):
            self.held.retire([number])
            self.make_room()

    def _die(self) -> None:
        self.die()


@settings(max_examples=400)
@given(SPECS, st.sampled_from([0, 70, 100, 130, 170, 220]), st.integers(0, 5), STEPS)
def test_whatever_happens_the_budget_is_kept_and_what_is_asked_for_comes(specs, bytes_max, run_bytes, steps):
    """`Lane` looks after each step for what must never be; at the end, each need that may be covered is, in turn."""
    lane = Played(bytes_max, *specs, run_bytes=run_bytes)
    for step in steps:
        lane.play(*step)
        assert lane.held.warm_count == len(lane.warm)
        assert lane.held.residency.held_bytes <= bytes_max or not bytes_max
    lane.end_run()
    for method in (A, B):
        for rows in (1, 2, 8):
            lane.settle_all()
            if not lane.ask(method, rows):
                continue
            for _ in range(20):
                lane.settle_all()
                lane.now_s += UNUSED_S_MAX
                lane.make_room()
                if any(one.candidate.id in lane.warm for one in lane.held.covering(method, {"batch": rows})):
                    break
            else:
                raise AssertionError((method.model, rows, lane.held.residency.held, lane.in_flight))
    assert lane.held.loaded
    needed = {lane.held.loadable(number).message.version for number in lane.held.residency.held}
    assert lane.mapped == needed, "weights stay for those that need them, and for nobody else"
    assert lane.loaded.keys() == lane.warm


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8)), min_size=50, max_size=300))
def test_traffic_of_changing_shapes_brings_back_only_what_is_paid_for(traffic):
    """Each batch runs on the best that is warm; all is covered by the largest, so nothing has to come."""
    lane = Lane(70, (A, 8, 10, True), (A, 1, 10, False), (A, 2, 10, False), (A, 4, 10, False))
    lane.settle_all()
    missed_us = 0.0
    for rows, times in traffic:
        for _ in range(times):
            covering = [*lane.held.covering(A, {"batch": rows})]
            warm = min(one.candidate.cost_us for one in covering if one.candidate.id in lane.warm)
            number = next(one.candidate.id for one in covering if one.candidate.cost_us == warm)
            missed_us += max(0.0, warm - min(one.candidate.cost_us for one in covering))
            lane.run(number, rows)
            lane.settle_all()
    assert lane.memory.reloads * GAIN * min(LOAD_US, LOAD_NS / 1e3) <= missed_us * 1.5 + 1
    assert 0 in lane.warm
