"""Each exact shape is run once, by whoever has it compiled anyway, and what went wrong there is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.publishing.toy import Heard
from warmpool.errors import ProofFailed, PublishError
from warmpool.manifest import DimSpec, Manifest, MethodSpec, TensorSpec, ToleranceSpec, WeightsSpec
from warmpool.publishing.buckets import buckets_over
from warmpool.publishing.draft import Draft
from warmpool.publishing.entries import Entry, Points
from warmpool.publishing.errands import Errands
from warmpool.publishing.export import Exported
from warmpool.publishing.kept_answers import KeptAnswers
from warmpool.publishing.machines import Children, Limits, Machine
from warmpool.publishing.program import Program
from warmpool.publishing.reference_runs import ReferenceRuns

DIMS = (
    DimSpec(name="batch", max=2, sizes=(1, 2), batch=True),
    DimSpec(name="seq", max=8, sizes=(4, 8)),
)
SPEC = MethodSpec(
    programs={"*": "p"},
    symbolic=True,
    inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", "seq")),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=("batch",)),),
)
MANIFEST = Manifest(
    model="toy",
    version="1",
    default_method="predict",
    dims=DIMS,
    methods={"predict": SPEC},
    weights=WeightsSpec(digest="", size_bytes=0, tensors=()),
    tolerance=ToleranceSpec(rtol=0.0, atol=0.0),
)
PROGRAM = Program("p", ("cpu",), b"stored")


class Recorded(Children):
    """Children that run nothing, and answer what a test wants."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.ran: list[tuple[str, dict[str, int]]] = []
        self.answer: dict[str, Any] = {"nowhere_a_number": []}

    def run(self, entry: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        self.ran.append((entry, argument["point"]))
        return self.answer


class Target:
    """The references of a target whose entries are all to be made."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        exported = {"predict": Exported(SPEC, {"*": PROGRAM}, (), lambda _: PROGRAM, None)}
        plan = tuple(("predict", bucket) for bucket in buckets_over(DIMS))
        self.draft = Draft(MANIFEST, content_named=False, entries=plan, exported=exported, folder=folder)
        machine = Machine("cpu", "jaxlib", Fingerprint(MappingProxyType({"host": "this"})), primary=True)
        self.children = Recorded()
        self.errands = Errands(self.draft, machine, self.children, ANYONE)
        buckets = {tuple(bucket.sizes.values()): bucket for bucket in buckets_over(DIMS)}
        self.entries = {sizes: Entry("predict", bucket, f"key of {sizes}", {}) for sizes, bucket in buckets.items()}
        self.store = SignedStore(LocalStore(folder / "store"), ANYONE)
        self.kept = KeptAnswers(self.store, self.draft, "cpu")
        self.references = ReferenceRuns(self.errands, executor, Heard(), self.kept)

    def plan(self, stored: dict[str, Path], find: Callable[[Entry], Path | None] = lambda edge: None) -> None:
        def exact(method: str, sizes: Any) -> Entry:
            return Entry(method, self.entries[1, 4].bucket, f"exact {dict(sizes)}", {})

        every = list(self.entries.values())
        self.references.plan(Points(self.draft, stored=bool(stored)), every, every, stored, find, exact)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with ThreadPoolExecutor(1) as executor:
        yield Target(tmp_path, executor)


def compiling(asked: list[str | None], result: Future[Any]) -> Callable[[str | None], Future[Any]]:
    def compile_entry(outputs: str | None) -> Future[Any]:
        asked.append(outputs)
        return result

    return compile_entry


def test_what_the_store_has_kept_is_run_nowhere(target: Target, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_bytes(b"what plain JAX answered")
    target.kept.keep("predict", {"seq": 4}, answers)
    target.plan({})
    asked: list[str | None] = []
    target.references.begin_with(target.entries[1, 4], {"seq": 4}, compiling(asked, Future()))
    target.references.begin(target.entries[2, 4], {"seq": 4})
    assert asked == [None], "compiled, and not run as a reference"
    assert (target.references.compiled, target.children.ran) == (0, [])
    file = Path(target.references.outputs("predict", {"seq": 4}))
    assert file.read_bytes() == b"what plain JAX answered"


def test_what_was_answered_is_kept_unless_it_is_no_number(target: Target) -> None:
    target.plan({})
    for seq, nowhere in ((1, ["output"]), (2, []), (3, [])):
        Path(target.errands.outputs_file("predict", f"seq={seq}")).write_bytes(b"answers")
        target.references.ran("predict", {"seq": seq}, {"nowhere_a_number": nowhere})
    file = target.errands.draft.folder / "fetched"
    assert [target.kept.fetch("predict", {"seq": seq}, file) for seq in (1, 2, 3)] == [False, True, True]


def test_the_compile_of_a_bucket_of_one_row_runs_the_reference_at_its_size(target: Target) -> None:
    target.plan({})
    asked: list[str | None] = []
    compiled: Future[Any] = Future()
    for sizes in ((1, 4), (2, 4)):
        target.references.begin_with(target.entries[sizes], {"seq": 4}, compiling(asked, compiled))
    assert asked == [target.errands.outputs_file("predict", "seq=4"), None]  # two rows are no exact shape
    target.references.begin(target.entries[1, 4], {"seq": 4})
    assert (target.references.compiled, len(target.references), target.children.ran) == (0, 1, [])
    compiled.set_result("artifact")
    assert target.references.outputs("predict", {"seq": 4}) == asked[0]


def test_a_reference_that_is_begun_is_not_run_by_a_compile_again(target: Target) -> None:
    target.plan({})
    asked: list[str | None] = []
    target.references.begin(target.entries[2, 8], {"seq": 4})
    target.references.begin_with(target.entries[1, 4], {"seq": 4}, compiling(asked, Future()))
    assert asked == [None]
    target.references.outputs("predict", {"seq": 4})
    assert (target.references.compiled, target.children.ran) == (1, [("reference", {"seq": 4})])


def test_where_everything_is_stored_what_pads_nothing_is_run_and_only_the_rest_compiled(
    target: Target, tmp_path: Path
) -> None:
    smallest = "exact {'seq': 1}"
    stored = {entry.key: tmp_path / "artifact" for entry in target.entries.values()}
    target.plan(stored, lambda edge: tmp_path / "edge" if edge.key == smallest else None)
    assert target.references.edges_found == target.errands.found == {smallest}
    for size in (8, 1, 6):
        target.references.begin(target.entries[2, 8], {"seq": size})
        target.references.outputs("predict", {"seq": size})
    workers = [worker for worker, _ in target.children.ran]
    assert workers == ["reference_stored", "reference_stored", "reference"]
    assert target.references.compiled == 1
    assert [one.point for one in target.references.edges] == [{"seq": 6}]  # to be stored, for the next weights


def test_what_a_run_says_is_raised_to_whoever_wants_its_answers(target: Target) -> None:
    target.plan({})
    target.children.answer = {"nowhere_a_number": ["y"]}
    target.references.begin(target.entries[1, 4], {"seq": 1})
    with pytest.raises(ProofFailed, match="model 'toy', method 'predict': output 'y' at seq=1 is NaN everywhere"):
        target.references.outputs("predict", {"seq": 1})
    compiled: Future[Any] = Future()
    target.references.begin_with(target.entries[1, 4], {"seq": 4}, compiling([], compiled))
    target.references.ran("predict", {"seq": 4}, {"failure": "RuntimeError: no room"})
    compiled.set_result("artifact")  # which says nothing against the compile
    for _ in range(2):
        with pytest.raises(PublishError, match="the reference at seq=4 failed: RuntimeError: no room"):
            target.references.outputs("predict", {"seq": 4})
