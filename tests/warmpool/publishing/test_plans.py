"""A fitted plan holds from when its executables are proved until another one does, whoever publishes meanwhile."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.publishing.toy import Heard, Toy
from warmpool.manifest import (
    DimSpec,
    ExecutableSpec,
    Manifest,
    MethodSpec,
    PlanSpec,
    ProofSpec,
    Serving,
    Target,
    TensorSpec,
    ToleranceSpec,
    WeightsSpec,
    encode,
    executable_path,
    manifest_path,
    serving_path,
    target_path,
)
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Entry, Points
from warmpool.publishing.from_store import make_from_store
from warmpool.publishing.known import Known
from warmpool.publishing.machines import Children, Limits
from warmpool.publishing.plans import plans_for, problem_of_plan

BATCH = DimSpec(name="batch", max=100, sizes=(1, 4, 8), batch=True)
SEQ = DimSpec(name="seq", max=64, sizes=(16, 32, 64))
HERE = Fingerprint(MappingProxyType({"platform": "cpu", "device_kind": "cpu", "jaxlib": "2"}))
OLDER = Fingerprint(MappingProxyType({"platform": "cpu", "device_kind": "cpu", "jaxlib": "1"}))
OTHER = Fingerprint(MappingProxyType({"platform": "tpu", "device_kind": "TPU v5", "jaxlib": "2"}))


def grid(**sizes: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip(sizes, bucket, strict=True)) for bucket in itertools.product(*sizes.values()))


def fitted(**sizes: tuple[int, ...]) -> PlanSpec:
    return PlanSpec(buckets=grid(**sizes), fitted_s=1.7e9, observations=1000.0)


PLAN = fitted(batch=(1, 8), seq=(20, 64))


def manifest(version: str = "1", *, symbolic: bool = True, dims: tuple[DimSpec, ...] = (BATCH, SEQ)) -> Manifest:
    tensor = TensorSpec(name="x", dtype="float32", shape=tuple(dim.name for dim in dims))
    spec = MethodSpec(programs={"*": "p"}, symbolic=symbolic, inputs=(tensor,), outputs=(tensor,))
    return Manifest(
        model="toy",
        version=version,
        default_method="predict",
        dims=dims,
        methods={"predict": spec},
        weights=WeightsSpec(digest="w", size_bytes=0, tensors=()),
        tolerance=ToleranceSpec(rtol=0, atol=0),
    )


def executable(key: str, **bucket: int) -> ExecutableSpec:
    return ExecutableSpec(
        key=key, method="predict", bucket=bucket, minimum=False, ladder=False, cost_us=1.0, size_bytes=1
    )


def target(machine: Fingerprint, *specs: ExecutableSpec, **plans: PlanSpec) -> Target:
    proofs = tuple(ProofSpec(method="predict", kind="padding", cases=3, error_max=0.5) for _ in specs[:1])
    return Target(fingerprint=dict(machine.ingredients), executables=specs, proofs=proofs, plans=plans or msgspec.UNSET)


# What a plan may be


def test_a_plan_within_the_limits_has_no_problem() -> None:
    assert problem_of_plan(manifest(), "predict", PLAN.buckets) == ""
    assert problem_of_plan(manifest(), "predict", grid(batch=BATCH.sizes, seq=SEQ.sizes)) == ""
    assert (
        problem_of_plan(
            manifest(), "predict", ({"batch": 8, "seq": 64}, {"batch": 3, "seq": 5}, {"batch": 1, "seq": 64})
        )
        == ""
    )
    assert problem_of_plan(manifest(dims=()), "predict", ({},)) == ""


@pytest.mark.parametrize(
    ("buckets", "problem"),
    [
        (grid(batch=(1, 8)), "a bucket has sizes for batch, needed: batch, seq"),
        (({},), "a bucket has sizes for nothing, needed: batch, seq"),
        (grid(seq=(64,), batch=(1, 8)), "a bucket has sizes for seq, batch, needed: batch, seq"),
        ((), "the bucket batch=1,seq=64 is missing, which every plan has"),
        (grid(batch=(1,), seq=(20, 64)), "the bucket batch=8,seq=64 is missing"),
        (grid(batch=(1, 8), seq=(20, 32)), "the bucket batch=1,seq=64 is missing"),
        (grid(batch=(1, 8), seq=(0, 64)), "a bucket has the seq 0, allowed: 1 to 64"),
        (grid(batch=(1, 8), seq=(65, 64)), "a bucket has the seq 65, allowed: 1 to 64"),
        (grid(batch=(1, 8, 9), seq=(64,)), "a bucket has the batch 9, allowed: 1 to 8"),
        (grid(batch=(1, 8), seq=(64, 20, 20)), "it has a bucket twice"),
    ],
)
def test_a_plan_out_of_the_limits_has_its_problem_named(buckets: tuple[dict[str, int], ...], problem: str) -> None:
    assert problem in problem_of_plan(manifest(), "predict", buckets)


@pytest.mark.parametrize(
    ("axis", "problem"),
    [
        ("100*(70 - seq)", "the bucket batch=8,seq=3 has tensors of 214528 bytes, allowed: 173312"),
        ("seq - 9", "the bucket batch=8,seq=3 has an output of less than no size"),
    ],
)
def test_buckets_whose_tensors_a_lane_has_no_place_for_are_a_problem(axis: str, problem: str) -> None:
    """Lanes are made for the sizes of the manifest, 16 and 64: an output may be larger, or none, below."""
    spec = manifest().methods["predict"]
    output = TensorSpec(name="y", dtype="float32", shape=("batch", axis))
    changed = {"predict": msgspec.structs.replace(spec, outputs=(output,))}
    whole = msgspec.structs.replace(manifest(), methods=changed)
    assert problem_of_plan(whole, "predict", grid(batch=(1, 8), seq=(16, 64))) == ""
    assert problem_of_plan(whole, "predict", grid(batch=(8, 1), seq=(3, 64))) == problem


def test_a_method_without_symbolic_dimensions_has_no_plan_but_its_own() -> None:
    whole = manifest(symbolic=False)
    assert problem_of_plan(whole, "predict", PLAN.buckets) == "its program has no symbolic dimensions"


def test_more_buckets_than_a_publish_makes_are_a_problem() -> None:
    wide = DimSpec(name="seq", max=65, sizes=(65,))
    assert problem_of_plan(manifest(), "predict", grid(batch=tuple(range(1, 9)), seq=tuple(range(1, 65)))) == ""
    problem = problem_of_plan(
        manifest(dims=(BATCH, wide)), "predict", grid(batch=tuple(range(1, 9)), seq=tuple(range(1, 66)))
    )
    assert problem == "it has 520 buckets, allowed: 512"


# Which one holds


class Stored:
    """A store with targets that were put there by hand."""

    def __init__(self, folder: Path) -> None:
        self.store = SignedStore(LocalStore(folder), ANYONE)
        self.said: list[str] = []

    def put(self, version: str, machine: Fingerprint, **plans: PlanSpec) -> None:
        self.store.put(manifest_path("toy", version), encode(manifest(version)))
        self.store.put(target_path("toy", version, machine.digest), encode(target(machine, **plans)))

    def serve(self, version: str) -> None:
        self.store.put(serving_path("toy"), encode(Serving(stable=version)))

    def plans(self, version: str, machine: Fingerprint = HERE, *, own: bool = True, **of: Any) -> dict[str, PlanSpec]:
        return plans_for(self.store, manifest(version, **of), machine, own=own, say=self.said.append)


def test_a_target_has_its_own_plan_and_where_it_has_none_no_other_either(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.put("1", HERE, predict=PLAN)
    stored.put("2", HERE)
    stored.serve("1")
    assert stored.plans("1") == {"predict": PLAN}
    assert stored.plans("2") == {}


def test_a_version_without_a_target_takes_over_what_is_served(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.put("1", HERE, predict=PLAN)
    assert stored.plans("2") == {}
    stored.serve("1")
    assert stored.plans("2") == {"predict": PLAN}
    assert stored.plans("2", OTHER) == {}


def test_what_was_begun_under_the_same_name_does_not_count_where_it_may_be_something_else(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.put("mine", HERE, predict=PLAN)
    assert stored.plans("mine", own=False) == {}


def test_other_software_for_the_same_device_takes_over_the_plan(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.put("1", OTHER, predict=fitted(batch=(1, 8), seq=(1, 64)))
    assert stored.plans("1") == {}
    stored.put("1", OLDER, predict=PLAN)
    assert stored.plans("1") == {"predict": PLAN}


def test_a_plan_that_does_not_fit_the_declaration_any_more_is_not_kept_and_said_so(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.put("1", HERE, predict=PLAN, gone=PLAN)
    stored.serve("1")
    shorter = DimSpec(name="seq", max=32, sizes=(32,))
    assert stored.plans("2", dims=(BATCH, shorter)) == {}
    assert "the fitted plan of predict is not kept: a bucket has the seq 64, allowed: 1 to 32" in stored.said[0]
    assert stored.plans("2", symbolic=False) == {}
    assert len(stored.said) == 2


def test_what_cannot_be_read_is_no_plan(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.put("1", HERE, predict=PLAN)
    stored.store.put(target_path("toy", "1", HERE.digest), b"[" * 9999 + b"\n")
    stored.store.put(serving_path("toy"), b"{}\n")
    assert stored.plans("1") == {}


# What is proved of it


def draft_of(**plans: PlanSpec) -> Draft:
    return Draft(manifest(), content_named=False, entries=(), exported={}, folder=Path()).planned(plans)


def test_a_planned_draft_has_the_buckets_of_the_plan_and_its_minimum_set() -> None:
    buckets = [bucket for _, bucket in draft_of(predict=PLAN).entries]
    assert [bucket.sizes for bucket in buckets] == [
        {"batch": 1, "seq": 64},
        {"batch": 1, "seq": 20},
        {"batch": 8, "seq": 20},
        {"batch": 8, "seq": 64},
    ]
    assert [bucket.minimum for bucket in buckets] == [True, False, False, False]
    assert [bucket.ladder for bucket in buckets] == [True, False, False, True]
    assert len(draft_of().entries) == 9


def test_buckets_need_not_be_all_combinations_of_their_sizes() -> None:
    some = PlanSpec(
        buckets=({"batch": 8, "seq": 64}, {"batch": 1, "seq": 64}, {"batch": 8, "seq": 9}),
        fitted_s=1.7e9,
        observations=1.0,
    )
    draft = draft_of(predict=some)
    assert [bucket.sizes for _, bucket in draft.entries] == [some.buckets[1], some.buckets[2], some.buckets[0]]
    assert {name: dim.sizes for name, dim in draft.subject("predict").dims.items()} == {"batch": (1, 8), "seq": (9, 64)}


def test_a_bucket_is_proved_at_the_edge_that_it_has_in_the_plan() -> None:
    """Lengths from 21 run in the bucket of 64: in the manifest's plan those from 33 did."""
    entry = Entry("predict", Bucket({"batch": 8, "seq": 64}, minimum=False, ladder=True), "k", {})
    for draft, edges in ((draft_of(predict=PLAN), {21}), (draft_of(), {33})):
        assert edges <= {point["seq"] for point in Points(draft, stored=False).of(entry)}


# What is stored


def known(store: SignedStore, entry: Entry, *, replan: bool, **plans: PlanSpec) -> Known:
    return Known(
        store,
        target_path("toy", "1", HERE.digest),
        HERE,
        [entry],
        [],
        lambda _: None,
        sound=lambda _: True,
        trusted=True,
        recording=False,
        plans=plans,
        replanned=frozenset(plans if replan else ()),
    )


def proved(one: Known, entry: Entry) -> Target:
    one.add(entry, executable(entry.key, **entry.bucket.sizes), [])
    one.write()
    return msgspec.json.decode(one.store.get(one.path), type=Target)


SEQ_20 = Entry("predict", Bucket({"batch": 1, "seq": 20}, minimum=False, ladder=False), "new", {})
SEQ_32 = Entry("predict", Bucket({"batch": 1, "seq": 32}, minimum=False, ladder=False), "own", {})


@pytest.fixture
def store(tmp_path: Path) -> SignedStore:
    store = SignedStore(LocalStore(tmp_path), ANYONE)
    old = target(HERE, executable("old", batch=1, seq=16), executable("both", batch=1, seq=64))
    store.put(target_path("toy", "1", HERE.digest), encode(old))
    return store


def test_of_a_method_with_another_plan_only_what_was_proved_anew_is_left(store: SignedStore) -> None:
    found = proved(known(store, SEQ_20, replan=True, predict=PLAN), SEQ_20)
    assert [one.key for one in found.executables] == ["new"]
    assert found.proofs == ()
    assert found.plans_by_method == {"predict": PLAN}


def test_the_plan_that_is_stored_decides_over_one_that_was_read_before(store: SignedStore) -> None:
    """A publish that began before a plan was fitted adds nothing that is not of the plan."""
    slow = known(store, SEQ_32, replan=False)
    slow.read()
    proved(known(store, SEQ_20, replan=True, predict=PLAN), SEQ_20)
    found = proved(slow, SEQ_32)
    assert [one.key for one in found.executables] == ["new"]
    assert found.plans_by_method == {"predict": PLAN}


def test_a_target_that_is_not_there_yet_gets_the_plan_that_was_taken_over(tmp_path: Path) -> None:
    empty = SignedStore(LocalStore(tmp_path / "empty"), ANYONE)
    found = proved(known(empty, SEQ_20, replan=False, predict=PLAN), SEQ_20)
    assert found.plans_by_method == {"predict": PLAN}


def test_a_target_without_a_plan_is_written_as_older_releases_read_it() -> None:
    assert b"plans" not in encode(target(HERE))
    assert msgspec.json.decode(encode(target(HERE)), type=Target).plans_by_method == {}


# From the store alone, with real executables


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    toy = Toy(tmp_path_factory.mktemp("plans"))
    toy.publish(sizes=(1, 2, 4))
    return toy


def read(toy: Toy) -> tuple[SignedStore, Manifest, str]:
    store = open_store(toy.settings)
    version = msgspec.json.decode(store.get(serving_path("toy")), type=Serving).stable
    found = msgspec.json.decode(store.get(manifest_path("toy", version)), type=Manifest)
    (name,) = store.names(f"models/toy/{version}/targets")
    return store, found, target_path("toy", version, name.removesuffix(".json"))


def target_of(toy: Toy) -> Target:
    store, _, path = read(toy)
    return msgspec.json.decode(store.get(path), type=Target)


def sizes_in(found: Target) -> list[int]:
    assert [spec.bucket["batch"] for spec in found.executables if spec.ladder] == [1, 4]
    return sorted(spec.bucket["batch"] for spec in found.executables if not spec.ladder)


def replan(toy: Toy, plan: PlanSpec | None) -> tuple[Any, Heard]:
    store, found, _ = read(toy)
    heard = Heard()
    with Children(Limits()) as children:
        (machine,) = children.machines("cpu")
        made = make_from_store(store, found, machine, children, heard, why="another plan", replan={"predict": plan})
    return made, heard


def test_another_plan_is_made_out_of_the_store_and_kept_by_whoever_publishes_next(toy: Toy) -> None:
    before, manifest_before = target_of(toy), read(toy)[1]
    assert sizes_in(before) == [1, 2, 4]
    plan = fitted(batch=(1, 3, 4), seq=(4,))
    made, heard = replan(toy, plan)
    after = target_of(toy)
    assert sizes_in(after) == [1, 3, 4]
    assert after.plans_by_method == {"predict": plan}
    assert (made.compiled, len(heard.compiled), made.proved) == (1, 1 + made.references, 5), "all proved anew"
    assert all(read(toy)[0].get(executable_path(spec.key)) for spec in after.executables)
    assert read(toy)[1] == manifest_before
    assert [spec.minimum for spec in after.executables] == [True, True, False, False, False]

    summary, _ = toy.publish(sizes=(1, 2, 4))
    assert (summary.compiled, summary.machines[0].proved) == (0, 0)
    assert target_of(toy) == after

    summary, _ = toy.publish(factor=3.0, sizes=(1, 2, 4))
    assert summary.compiled == 0, "new weights compile nothing, in the plan that was fitted either"
    assert sizes_in(target_of(toy)) == [1, 3, 4]
    assert target_of(toy).plans_by_method == {"predict": plan}

    made, _ = replan(toy, None)
    assert (made.compiled, sizes_in(target_of(toy))) == (0, [1, 2, 4]), "back to the manifest's own"
    assert target_of(toy).plans_by_method == {}
