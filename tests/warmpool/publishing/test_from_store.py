"""A published version made piece by piece for a kind of machine that has nothing of it, beside a serving instance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

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

ONE, TWO, FOUR = (Place("predict", f"batch={size},seq=4") for size in (1, 2, 4))


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
        toy = Toy(folder)
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
        self, only: list[Place] | None, *, crashing: Iterable[int] = (), **more: Any
    ) -> tuple[Made, list[PlaceMade]]:
        told: list[PlaceMade] = []
        with Crashing(crashing) as children:
            (machine,) = children.machines("cpu")
            made = make_from_store(
                self.store, self.manifest, machine, children, Heard(), why="test", only=only, told=told.append, **more
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
    assert list(found) == [ONE, TWO, FOUR], "the minimum set first, then by size"
    assert [(one.minimum, one.stored, one.ladder) for one in found.values()] == [
        (True, False, False),
        (False, False, False),
        (False, False, False),
    ]
    assert found[FOUR].bucket == {"batch": 4, "seq": 4}

    made, told = stale.make([FOUR])
    assert made.compiled == 2, "the minimum set comes with the first"
    assert [(one.place, one.visible, one.failure) for one in told] == [(ONE, True, ""), (FOUR, True, "")]
    assert [one.key for one in told] == [found[ONE].key, found[FOUR].key]
    assert stale.listed() == [ONE, FOUR]
    assert list(stale.missing()) == [TWO]

    made, told = stale.make([TWO])
    assert (made.compiled, [one.place for one in told]) == (1, [TWO])
    assert stale.listed() == [ONE, TWO, FOUR]
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
    key = stale.target().executables[1].key
    stale.store.delete(executable_path(key))
    assert [(place, one.key, one.stored) for place, one in stale.missing().items()] == [(TWO, key, False)]
    made, _ = stale.make([TWO])
    assert made.compiled == 1
    assert stale.missing() == {}


def test_a_place_that_fails_is_recorded_and_does_not_keep_the_others(stale: Stale) -> None:
    key = stale.missing()[TWO].key
    made, told = stale.make(None, crashing=[2])
    assert set(made.failed) == {TWO}
    assert {one.place: bool(one.failure) for one in told} == {ONE: False, TWO: True, FOUR: False}
    assert stale.listed() == [ONE, FOUR]
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
    assert set(made.failed) == {ONE, FOUR}, "whose reference is what the minimum set's child would have run"
    assert {one.place: (bool(one.failure), one.visible) for one in told} == {ONE: (True, False), FOUR: (True, False)}
    assert not stale.is_visible()
    assert stale.store.names("failures") == [stale.missing()[ONE].key], "that is no failure of the other one"


def test_another_plan_is_put_whole_or_not_at_all(stale: Stale) -> None:
    stale.make(None)
    before = stale.target()
    plan = PlanSpec(buckets=tuple({"batch": size, "seq": 4} for size in (1, 3, 4)), fitted_s=1.7e9, observations=1000.0)
    with pytest.raises(PublishError, match="batch=3"):
        stale.make(None, crashing=[3], replan={"predict": plan})
    assert stale.target() == before


def test_a_failure_that_others_recorded_keeps_one_place_empty(stale: Stale) -> None:
    key = stale.missing()[FOUR].key
    record(stale.store, Failure.now(key=key, what="it", reason="no such op", fingerprint=stale.fingerprint.digest))
    made, _ = stale.make(None)
    assert "no such op" in made.failed[FOUR]
    assert stale.listed() == [ONE, TWO]


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
