from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bare_start import CODE, BareStart
from benchmarks.questions import Question, WrongAnswer
from benchmarks.stores import signing_key
from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import Signer, Trust
from tests.tiny import publish_tiny

ROOT = Path(__file__).resolve().parents[2]
X = np.array([[1, 2, 3, 4]], np.float32)
Y = np.array([[32, 20, 3]], np.float32)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fingerprint]:
    folder = tmp_path_factory.mktemp("published") / "store"
    signer = Signer.generate()
    signer.write(signing_key(folder))
    store = SignedStore(LocalStore(folder), Trust.of([signer.public]), signer)
    return folder, publish_tiny(store, methods=("predict",))


@pytest.fixture
def start(published: tuple[Path, Fingerprint], tmp_path: Path) -> BareStart:
    store, fingerprint = published
    return BareStart.prepare(tmp_path / "bare", store, Question("tiny", {"x": X}, Y), fingerprint)


def test_every_bucket_is_loaded_run_and_right(start: BareStart) -> None:
    times = start.run()
    assert start.buckets == ["batch=1", "batch=2", "batch=4", "batch=8"]
    assert 0 < times.imported_s < times.client_s < times.mapped_s < times.warm_s
    took_s = [load_s + run_s for load_s, run_s in zip(times.load_s, times.run_s, strict=True)]
    assert len(took_s) == 4
    assert max(took_s) < times.warm_s - times.mapped_s


def test_a_wrong_answer_is_told_with_its_bucket(start: BareStart) -> None:
    wrong = replace(start, question=Question("tiny", {"x": X}, Y + 1))
    with pytest.raises(WrongAnswer, match="the bare process, batch=1: tiny is off by 1"):
        wrong.run()


def test_what_cannot_be_loaded_is_told_in_the_process_own_words(start: BareStart) -> None:
    plan = json.loads(start.plan_file.read_text(encoding="utf-8"))
    Path(plan["executables"][2]["file"]).write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"ended with status 1; it said: (?s:.*)KeyError: 2"):
        start.run()


def test_it_imports_nothing_of_ours_and_no_jax(start: BareStart) -> None:
    code = f"{CODE}; print(*(name for name, module in sys.modules.items() if module), file=sys.stderr)"
    command = [sys.executable, "-S", "-c", code, sysconfig.get_path("platlib"), str(start.plan_file), "0"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    imported = {name.partition(".")[0] for name in ended.stderr.decode().split()}
    assert {"numpy", "jaxlib", "benchmarks"} <= imported
    assert not imported & {"jax", "cache", "warmpool", "msgspec", "asyncio"}
