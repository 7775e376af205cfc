"""What a publish does to what is served: the new version is stable and the one before is kept, or nothing changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache.local_store import LocalStore
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from cache.sweep import Reused
from tests.warmpool.stored_version import put
from warmpool.errors import PublishError
from warmpool.manifest import Manifest, Serving, encode, serving_path
from warmpool.publishing import versions
from warmpool.publishing.publish import Options, Summary, publish

MODEL = """
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=2, sizes=(1,), batch=True)

def predict(params, x):
    return x * params["factor"]

model = Model(
    name="toy",
    methods={{"predict": predict}},
    params={{"factor": __import__("numpy").float32({factor})}},
    inputs={{"x": Tensor("float32", (batch,))}},
)
"""


class Quiet:
    def say(self, text: str) -> None: ...

    def expect(self, steps: int) -> None: ...

    def step(self, text: str) -> None: ...


class Writing(LocalStore):
    """Somebody else writes what is served each time before it is written here."""

    def __init__(self, root: Path, others: list[str]) -> None:
        super().__init__(root)
        self.others = others

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        if self.others:
            self.put(path, encode(Serving(stable=self.others.pop(0))))
        return super().put_if(path, data, generation)


class Stored:
    """A store of versions that are published, and what is served of them."""

    def __init__(self, store: LocalStore) -> None:
        self.store = SignedStore(store, ANYONE)
        self.records: list[tuple[str, Any]] = []
        self.store.audit.record = lambda event, **said: self.records.append((event, said["before"]))  # type: ignore[method-assign]
        self.manifests: dict[str, Manifest] = {}

    def serve(self, version: str) -> None:
        manifest = put(self.store, "toy", version, serving=False)
        said: Any = {"model": "toy", "version": version, "key_id": ""}
        versions._serve(self.store, manifest, Reused(self.store.bottom), said)

    @property
    def served(self) -> Serving:
        return msgspec.json.decode(self.store.get(serving_path("toy")), type=Serving)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(LocalStore(tmp_path / "store"))


def test_the_first_version_is_served_and_the_next_keeps_the_one_before(stored: Stored) -> None:
    stored.serve("1")
    assert stored.served == Serving(stable="1")
    stored.serve("2")
    assert stored.served == Serving(stable="2", previous="1")
    stored.serve("3")
    assert stored.served == Serving(stable="3", previous="2")
    assert stored.records == [("promote", ""), ("promote", "1"), ("promote", "2")]


def test_a_version_that_is_stable_already_changes_nothing_of_a_rollout(stored: Stored) -> None:
    rollout = Serving(stable="1", canary="2", share=0.1, previous="0")
    stored.store.put(serving_path("toy"), encode(rollout))
    stored.serve("1")
    assert (stored.served, stored.records) == (rollout, [])


def test_another_version_ends_a_rollout(stored: Stored) -> None:
    stored.store.put(serving_path("toy"), encode(Serving(stable="1", canary="2", share=0.1)))
    stored.serve("3")
    assert stored.served == Serving(stable="3", previous="1")


def test_what_cannot_be_read_is_written_anew(stored: Stored) -> None:
    stored.store.put(serving_path("toy"), b"{\n")
    stored.serve("1")
    assert (stored.served, stored.records) == (Serving(stable="1"), [("promote", "")])


def test_what_others_write_meanwhile_is_the_version_before(tmp_path: Path) -> None:
    stored = Stored(Writing(tmp_path / "store", ["8", "9"]))
    stored.serve("1")
    assert stored.served == Serving(stable="1", previous="9")
    assert stored.records == [("promote", "9")]


def test_what_others_write_again_and_again_is_an_error(tmp_path: Path) -> None:
    stored = Stored(Writing(tmp_path / "store", [str(number) for number in range(100, 120)]))
    with pytest.raises(PublishError, match=r"^models/toy/serving.json was changed by others 8 times"):
        stored.serve("1")
    assert stored.records == []


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Summary]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = StoreSettings(store=str(tmp_path / "store"), allow_unsigned=True)

    def made(factor: float, **options: Any) -> Summary:
        (tmp_path / "toy.py").write_text(MODEL.format(factor=factor))
        return publish(Options(model_file=tmp_path / "toy.py", store=settings, **options), Quiet())

    return made


def test_a_publish_that_is_not_to_serve_leaves_what_is_served_and_publishes_the_rest(
    publisher: Callable[..., Summary], tmp_path: Path
) -> None:
    file = tmp_path / "store" / serving_path("toy")
    first = publisher(0.5, serve=False)
    assert not file.exists(), "nothing is served yet"
    publisher(0.5)
    assert msgspec.json.decode(file.read_bytes(), type=Serving) == Serving(stable=first.version)
    before = file.read_bytes()
    second = publisher(0.25, serve=False)
    assert (file.read_bytes(), second.compiled) == (before, 0)
    assert (tmp_path / "store" / "models" / "toy" / second.version / "manifest.json").exists()
    publisher(0.25)
    served = msgspec.json.decode(file.read_bytes(), type=Serving)
    assert served == Serving(stable=second.version, previous=first.version)
