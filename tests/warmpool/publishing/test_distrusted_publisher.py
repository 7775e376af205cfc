"""A key that the store says is distrusted publishes nothing more, and what it signed is made again by whoever does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cache.errors import Untrusted
from cache.local_store import LocalStore
from cache.settings import StoreSettings
from cache.signing import Signer
from tests.warmpool.publishing.toy import Toy


def test_without_a_key_that_signs_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmpool.publishing.publish.Children", None)  # no child is started
    toy = Toy(tmp_path)
    toy.settings = StoreSettings(store=str(toy.store), trusted_keys=str(tmp_path / "key.pub"))
    with pytest.raises(Untrusted, match="cannot be stored unsigned: give a signing key"):
        toy.publish("1")
    assert list(LocalStore(toy.store).entries("")) == []


@pytest.mark.slow
def test_after_a_distrust_its_key_publishes_nothing_and_another_one_makes_everything_again(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    toy.publish("1")
    store = LocalStore(toy.store)
    signer = Signer.read(tmp_path / "key")
    store.put(f"distrusted/{signer.key_id}", b"{}")
    before = {entry.path for entry in store.entries("models")}
    with pytest.raises(Untrusted, match="which would sign it, is distrusted"):
        toy.publish("2")
    assert {entry.path for entry in store.entries("models")} == before
    Signer.generate().write(tmp_path / "second")
    (tmp_path / "trusted").mkdir()
    for key in ("key.pub", "second.pub"):
        (tmp_path / "trusted" / key).write_bytes((tmp_path / key).read_bytes())
    toy.settings = replace(toy.settings, signing_key=str(tmp_path / "second"), trusted_keys=str(tmp_path / "trusted"))
    summary, _ = toy.publish("2")
    assert (summary.compiled, summary.reused) == (2, 0)
