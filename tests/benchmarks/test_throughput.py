"""The clients, and the bare process with the best offline batches, on a tiny model in a real instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bare_start import BareStart
from benchmarks.connection import poll
from benchmarks.offline_batches import OfflineBatches
from benchmarks.questions import Question, WrongAnswer
from benchmarks.server import warmpool
from benchmarks.status import STATUS, settled
from benchmarks.stores import model_in, signing_key
from benchmarks.throughput import TARGET, Clients, Loaded, Subject, best_of, figures_of
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import Signer, Trust
from tests.tiny import BIAS, MATRIX, publish_tiny

WARM = Question("tiny", {"x": np.ones((1, 4), np.float32)}, np.array([[17, 9, -4]], np.float32))
ROWS = (1, 3, 1, 2, 1, 8, 1, 1)
XS = [np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) + number for number, rows in enumerate(ROWS)]
CPU = {"front": 0.5, "lanes": 9.5, "clients": 0.5, "bare": 9.0}
RIGHT = [x @ MATRIX + BIAS for x in XS]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BareStart]:
    folder = tmp_path_factory.mktemp("published") / "store"
    signer = Signer.generate()
    signer.write(signing_key(folder))
    fingerprint = publish_tiny(SignedStore(LocalStore(folder), Trust.of([signer.public]), signer), methods=("predict",))
    return folder, BareStart.prepare(folder.parent / "bare", folder, WARM, fingerprint)


def offline(store: Path, start: BareStart) -> OfflineBatches:
    method = model_in(store, "tiny").method(None)
    assert method is not None
    return OfflineBatches(start.plan_file.parent, start, method, [{"x": x} for x in XS])


def subject(**changes: Any) -> Subject:
    values: dict[str, Any] = {
        "requests": [{"x": x} for x in XS],
        "connections": (2,),
        "p99_s_max": 10.0,
        "target": TARGET,
    }
    return Subject("tiny", "tiny", WARM, "y", **values | changes)


def test_the_bare_process_answers_every_request_however_its_rows_are_batched(prepared: tuple[Path, BareStart]) -> None:
    with offline(*prepared) as bare:
        for _ in range(2):
            took_s, cpu_s, answers = bare.run()
            assert took_s > 0
            assert cpu_s > 0
            for answer, right in zip(answers, RIGHT, strict=True):
                np.testing.assert_allclose(answer, right)
        told = bare.describe()
    assert 3 <= told["batches"] <= 18  # 18 rows, at most 8 in one
    assert len(told["costs_us"]) == 4


def test_a_bare_process_that_ends_is_told(prepared: tuple[Path, BareStart]) -> None:
    with offline(*prepared) as bare:
        bare._batches_file.write_text('{"data": "nothing"}', encoding="utf-8")
        with pytest.raises(RuntimeError, match="the bare process ended with status 1"):
            bare.run()


def test_clients_load_an_instance_and_check_every_answer(prepared: tuple[Path, BareStart], tmp_path: Path) -> None:
    store, start = prepared
    with warmpool(store, tmp_path / "log") as server, offline(store, start) as bare:
        poll(server.port, STATUS, 60.0, settled)
        loaded = Clients(tmp_path / "load", server, subject()).load(2, bare)
        assert loaded.connections == 2
        assert min(loaded.per_s, loaded.bare_per_s, loaded.p99_s) > 0
        assert set(loaded.cpu_ms) == {"front", "lanes", "clients", "bare"}
        assert min(loaded.cpu_ms["clients"], loaded.cpu_ms["bare"]) > 0
        others = subject(requests=[{"x": x + (number == 5)} for number, x in enumerate(XS)])
        with pytest.raises(WrongAnswer, match="warmpool, request 5: tiny is off by"):
            Clients(tmp_path / "other", server, others).load(2, bare)


def test_the_most_answers_within_the_limit_count() -> None:
    few, many, late = (
        Loaded(8, 50.0, 0.1, 100.0, CPU),
        Loaded(16, 80.0, 0.9, 100.0, CPU),
        Loaded(32, 90.0, 1.1, 100.0, CPU),
    )
    assert best_of([few, many, late], 1.0) is many
    assert best_of([few, many, late], 2.0) is late
    assert best_of([many, late], 0.5) is many  # none is within it


def test_one_number_of_connections_counts_in_all_rounds() -> None:
    rounds = [
        [Loaded(8, 50.0, 0.1, 100.0, CPU), Loaded(16, 90.0, 1.2, 100.0, CPU)],
        [Loaded(8, 50.0, 0.1, 100.0, CPU), Loaded(16, 90.0, 0.8, 100.0, CPU)],
        [Loaded(8, 50.0, 0.1, 100.0, CPU), Loaded(16, 80.0, 0.7, 100.0, CPU)],
    ]
    figures = figures_of(subject(p99_s_max=1.0), rounds)
    assert [figure.samples for figure in figures] == [
        (100.0, 100.0, 100.0),
        (90.0, 90.0, 80.0),
        (1200.0, 800.0, 700.0),
        (0.9, 0.9, 0.8),
        (0.5, 0.5, 0.5),
        (9.5, 9.5, 9.5),
        (0.5, 0.5, 0.5),
        (9.0, 9.0, 9.0),
        (0.9, 0.9, 0.9),
    ]
    assert "16 connections" in figures[1].name
    assert (figures[3].verdict, figures[3].name) == ("met", "tiny: over best offline within a p99 of 1000 ms")
