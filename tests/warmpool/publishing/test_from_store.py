"""A published version made piece by piece for a kind of machine that has nothing of it, beside a serving instance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cache.artifact import unpack
from cache.failures import Failure, record, recorded
from cache.fingerprint import Fingerprint
from cache.opening import open_store
from cache.signed_store import SignedStore
from tests.warmpool.publishing.toy import Heard, Toy
from warmpool.errors import PublishError
from warmpool.forking import WorkerFailed
from warmpool.manifest import (
    Manifest,
    PlanSpec,
    Serving,
    Target,
    encode,
    executable_path,
    manifest_path,
    serving_path,
    target_path,
)
from warmpool.publishing.from_store import make_from_store
from warmpool.publishing.machines import Children, Limits
from warmpool.publishing.made import Made, PlaceMade
from warmpool.publishing.missing import Missing, missing_places
from warmpool.publishing.places import Place

ONE, TWO, FOUR = (Place("predict", f"batch={size},seq=2") for size in (1, 2, 4))
LADDER = [ONE.other, FOUR.other]  # of the CPU lane alone: the minimum, and as many rows as fit


class Crashing(Children):
    """Children that crash when they are to compile for one of these batch sizes."""

    def __init__(self, batches: Iterable[int]) -> None:
        super().__init__(Limits())
        self._batches = set(batches)

    def run(self, entry: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        if entry == "compile_bucket" and argument["bucket"]["batch"] in self._batches:
            raise PublishError(f"{what} failed") from WorkerFailed(entry, "crash", "signal SIGSEGV")
        return super().run(entry, argument, what)


class Stale:
    """A store whose version was published somewhere else: nothing of it is for this kind of machine."""

    def __init__(self, folder: Path) -> None:
        toy = Toy(folder, seq=2)
        summary, _ = toy.publish(sizes=(1, 2, 4))
        self.settings = toy.settings
        self.store: SignedStore = open_store(toy.settings)
        version = msgspec.json.decode(self.store.get(serving_path("toy")), type=Serving).stable
        self.manifest = msgspec.json.decode(self.store.get(manifest_path("toy", version)), type=Manifest)
        self.path = target_path("toy", version, summary.machines[0].fingerprint)
        self.fingerprint = Fingerprint(self.target().fingerprint)
        self.empty()

    def empty(self) -> None:
        self.store.delete(self.path)
        for entry in list(self.store.bottom.entries("")):
            if entry.path.partition("/")[0] in {"executables", "failures", "breakers"}:
                self.store.delete(entry.path)

    def target(self) -> Target:
        return msgspec.json.decode(self.store.get(self.path), type=Target)

    def listed(self) -> list[Place]:
        return [Place.of(spec) for spec in self.target().executables] if self.is_visible() else []

    def is_visible(self) -> bool:
        return self.path.rpartition("/")[2] in self.store.names(self.path.rpartition("/")[0])

    def missing(self) -> dict[Place, Missing]:
        return {one.place: one for one in missing_places(self.store, self.manifest, self.fingerprint)}

    def make(
        self,
        only: list[Place] | None,
        *,
        crashing: Iterable[int] = (),
        children: type[Crashing] = Crashing,
        **more: Any,
    ) -> tuple[Made, list[PlaceMade]]:
        told: list[PlaceMade] = []
        with children(crashing) as running:
            (machine,) = running.machines("cpu")
            made = make_from_store(
                self.store, self.manifest, machine, running, Heard(), why="test", only=only, told=told.append, **more
            )
        return made, told


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Stale:
    return Stale(tmp_path_factory.mktemp("from-store"))


@pytest.fixture
def stale(published: Stale) -> Stale:
    published.empty()
    return published


def test_one_place_after_the_other_completes_a_target(stale: Stale) -> None:
    found = stale.missing()
    assert list(found) == [ONE, LADDER[0], TWO, FOUR, LADDER[1]], "the minimum sets first, then by size, and by lane"
    assert [one.minimum for one in found.values()] == [True, True, False, False, False]
    assert not any(one.stored for one in found.values())
    assert found[FOUR].bucket == found[FOUR.other].bucket == {"batch": 4, "seq": 2}
    assert len({one.key for one in found.values()}) == len(found)

    made, told = stale.make([FOUR])
    assert made.compiled == 2, "the minimum set comes with the first"
    assert [(one.place, one.visible, one.failure) for one in told] == [(ONE, True, ""), (FOUR, True, "")]
    assert [one.key for one in told] == [found[ONE].key, found[FOUR].key]
    assert stale.listed() == [ONE, FOUR]
    assert list(stale.missing()) == [LADDER[0], TWO, LADDER[1]]

    made, told = stale.make([TWO])
    assert (made.compiled, [one.place for one in told]) == (1, [TWO])
    assert stale.listed() == [ONE, TWO, FOUR]
    made, told = stale.make([FOUR.other])
    assert [(one.place, one.visible) for one in told] == [(ONE.other, True), (FOUR.other, True)]
    assert stale.listed() == list(found)
    assert [spec.key for spec in stale.target().executables] == [one.key for one in found.values()]
    assert stale.missing() == {}
    made, told = stale.make(None)
    assert (made.compiled, made.proved, told) == (0, 0, []), "it is as if it had been made at once"


def test_what_is_stored_and_not_proved_is_missing_and_is_not_compiled(stale: Stale) -> None:
    stale.make(None)
    stale.store.delete(stale.path)
    assert all(one.stored for one in stale.missing().values())
    made, told = stale.make([ONE])
    assert (made.compiled, made.proved, [one.place for one in told]) == (0, 1, [ONE])


def test_an_artifact_that_was_set_aside_is_missing_though_the_target_lists_it(stale: Stale) -> None:
    stale.make(None)
    key = stale.target().executables[2].key
    stale.store.delete(executable_path(key))
    assert [(place, one.key, one.stored) for place, one in stale.missing().items()] == [(TWO, key, False)]
    made, _ = stale.make([TWO])
    assert made.compiled == 1
    assert stale.missing() == {}


def test_a_place_that_fails_is_recorded_and_does_not_keep_the_others(stale: Stale) -> None:
    key = stale.missing()[TWO].key
    made, told = stale.make(None, crashing=[2])
    assert set(made.failed) == {TWO}
    assert {one.place for one in told if one.failure} == {TWO}
    assert stale.listed() == [ONE, LADDER[0], FOUR, LADDER[1]]
    failure = recorded(stale.store, key)
    assert failure is not None
    assert "crash: signal SIGSEGV" in failure.reason

    made, told = stale.make([TWO])
    assert "failed to compile before" in made.failed[TWO], "nobody tries it again unless he is asked to"
    assert (made.compiled, [one.place for one in told]) == (0, [TWO])
    made, _ = stale.make([TWO], retry_failed=True)
    assert (made.compiled, made.failed, stale.missing()) == (1, {}, {})


def test_a_target_without_its_minimum_set_is_not_put(stale: Stale) -> None:
    made, told = stale.make([FOUR], crashing=[1])
    assert set(made.failed) == {ONE}, "what the other one is compared with the store has kept"
    assert {one.place: (bool(one.failure), one.visible) for one in told} == {ONE: (True, False), FOUR: (False, False)}
    assert not stale.is_visible()
    assert stale.store.names("failures") == [stale.missing()[ONE].key], "that is no failure of the other one"


def test_another_plan_is_put_whole_or_not_at_all(stale: Stale) -> None:
    stale.make(None)
    before = stale.target()
    plan = PlanSpec(buckets=tuple({"batch": size, "seq": 2} for size in (1, 3, 4)), fitted_s=1.7e9, observations=1000.0)
    with pytest.raises(PublishError, match="batch=3"):
        stale.make(None, crashing=[3], replan={"predict": plan})
    assert stale.target() == before


def test_a_failure_that_others_recorded_keeps_one_place_empty(stale: Stale) -> None:
    key = stale.missing()[FOUR].key
    record(stale.store, Failure.now(key=key, what="it", reason="no such op", fingerprint=stale.fingerprint.digest))
    made, _ = stale.make(None)
    assert "no such op" in made.failed[FOUR]
    assert stale.listed() == [ONE, LADDER[0], TWO, LADDER[1]]


def test_a_program_of_which_many_failed_is_left_alone_until_somebody_asks(stale: Stale) -> None:
    program = stale.manifest.methods["predict"].programs["*"]
    for key in ("a", "b", "c"):
        failure = Failure.now(key=key, what="it", reason="abort", fingerprint=stale.fingerprint.digest, program=program)
        record(stale.store, failure)
    made, told = stale.make([FOUR])
    assert (made.compiled, set(made.failed)) == (0, {ONE, FOUR})
    assert "3 others of its program failed; one of them: abort" in told[0].failure
    assert sorted(stale.store.names("failures")) == ["a", "b", "c"]
    made, _ = stale.make([FOUR], retry_failed=True)
    assert (made.compiled, made.failed) == (2, {})
    assert stale.store.names(f"breakers/{program}-{stale.fingerprint.digest}") == []


def test_limits_say_what_they_allow() -> None:
    assert str(Limits(wall_s_max=2.5, cpu_s_max=4, memory_bytes_max=3 << 29)) == "2.5 s, 4 s of CPU time and 1.5 GiB"
    assert str(Limits(wall_s_max=2, cpu_s_max=0, memory_bytes_max=0)) == "2 s, any CPU time and any memory"


# The CPU lane's own ladder


def lanes_compared(target: Target) -> int:
    return sum(proof.cases for proof in target.proofs if proof.kind == "lanes")


def test_the_ladder_is_compiled_fast_for_the_cpu_lane_alone_and_answers_as_the_primary_lane(stale: Stale) -> None:
    stale.make(None)
    target = stale.target()
    specs = {Place.of(spec): spec for spec in target.executables}
    assert [place for place, spec in specs.items() if spec.ladder] == LADDER
    assert all(spec.cpu_lane_only == spec.ladder for spec in specs.values())
    for place, spec in specs.items():
        header, _ = unpack(stale.store.get(executable_path(spec.key)), key=spec.key, trust=stale.store.trust)
        found = {name: value for name, value in header.ingredients.items() if name.startswith("option.")}
        assert found.get("option.xla_backend_optimization_level") == ("1" if place.ladder else None)
    assert lanes_compared(target) > 0
    assert next(proof.error_max for proof in target.proofs if proof.kind == "lanes") <= 1e-5


def test_lanes_are_compared_whichever_is_made_last(stale: Stale) -> None:
    stale.make([ONE.other])
    assert stale.listed() == [ONE.other], "the CPU lane has all that it needs, and the primary lane nothing"
    assert lanes_compared(stale.target()) == 0
    stale.make([ONE])
    once = lanes_compared(stale.target())
    assert once > 0
    stale.make([FOUR.other])
    assert lanes_compared(stale.target()) == once
    stale.make([FOUR])
    assert lanes_compared(stale.target()) > once


class Drifting(Crashing):
    """Children of a machine where the other lane answers otherwise than it does."""

    def run(self, entry: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        result = super().run(entry, argument, what)
        if entry == "answers":
            with np.load(argument["outputs"]) as stored:
                arrays = {name: stored[name] for name in stored.files}
            arrays["0.0"] = np.frombuffer(
                (np.frombuffer(arrays["0.0"].tobytes(), np.float32) + 0.5).tobytes(), np.uint8
            )
            np.savez(argument["outputs"], allow_pickle=False, **arrays)
        return result


def test_an_executable_that_answers_otherwise_than_the_other_lane_is_refused(stale: Stale) -> None:
    found = stale.missing()
    stale.make([ONE])
    made, _ = stale.make([ONE.other], children=Drifting)
    assert "differs between the lanes by 0.5" in made.failed[ONE.other]
    assert stale.listed() == [ONE]
    assert_nothing_is_held_against_anything(stale)
    assert found[ONE.other].key in stale.store.names("executables"), "it answers as plain JAX does"
    made, _ = stale.make([ONE.other], children=Drifting)
    assert "differs between the lanes by 0.5" in made.failed[ONE.other], "it is found, and compared again"
    assert (made.compiled, stale.listed()) == (0, [ONE])
    made, _ = stale.make([ONE.other])
    assert (made.compiled, stale.listed()) == (0, [ONE, ONE.other])


def assert_nothing_is_held_against_anything(stale: Stale) -> None:
    assert stale.store.names("failures") == []
    assert not [entry.path for entry in stale.store.bottom.entries("") if entry.path.startswith("breakers/")]


class Unlike(Crashing):
    """Children of weights with which nothing answers as plain JAX does."""

    def run(self, entry: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        result = super().run(entry, argument, what)
        return {**result, "failure": "output 'y' is off by 0.5"} if entry == "trial" else result


def test_weights_that_do_not_answer_as_they_must_take_nothing_from_others_of_the_same_program(stale: Stale) -> None:
    made, told = stale.make(None, children=Unlike)
    assert set(made.failed) == {ONE, TWO, FOUR, *LADDER}
    assert all("is off by 0.5" in one.failure for one in told)
    assert_nothing_is_held_against_anything(stale)
    served = {executable_path(one.key) for one in stale.missing().values()}
    assert not served & {f"executables/{key}" for key in stale.store.names("executables")}, "what no proof passed"
    made, _ = stale.make(None)
    assert (made.failed, stale.missing()) == ({}, {})


def test_a_target_of_before_keeps_what_it_has_and_gets_a_ladder(stale: Stale) -> None:
    stale.make(None)
    target = stale.target()
    before = [
        msgspec.structs.replace(spec, ladder=Place.of(spec).other in LADDER)
        for spec in target.executables
        if not spec.cpu_lane_only
    ]
    for spec in target.executables:
        if spec.cpu_lane_only:
            stale.store.delete(executable_path(spec.key))
    stale.store.put(stale.path, encode(msgspec.structs.replace(target, executables=tuple(before))))
    assert b"cpu_lane_only" not in stale.store.get(stale.path)
    assert [spec.is_for(ladder_only=True) for spec in stale.target().executables] == [True, False, True]
    assert all(spec.is_for(ladder_only=False) for spec in stale.target().executables), "for both lanes, as it was"
    assert list(stale.missing()) == LADDER

    made, told = stale.make([ONE.other])
    assert (made.compiled, [one.place for one in told]) == (1, LADDER[:1])
    specs = {Place.of(spec): spec for spec in stale.target().executables}
    assert [place for place, spec in specs.items() if spec.ladder] == [ONE.other, FOUR]
    stale.make(None)
    specs = {Place.of(spec): spec for spec in stale.target().executables}
    assert [place for place, spec in specs.items() if spec.ladder] == LADDER
    assert [specs[place].cost_us for place in (ONE, TWO, FOUR)] == [spec.cost_us for spec in before]
