from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.local_store import LocalStore
from warmpool import traffic_record
from warmpool.shape_sketch import ShapeSketch
from warmpool.traffic_record import (
    Counts,
    MethodTraffic,
    TrafficRecord,
    counts_of,
    encode_record,
    read_record,
    read_records,
    record_path,
)

NOW_S = 1.7e9


def counts(*shapes: tuple[int, ...]) -> Counts:
    sketch = ShapeSketch()
    for shape in shapes:
        sketch.add(shape, NOW_S)
    return counts_of(sketch, NOW_S)


def record(model: str = "toy", **changes: Any) -> TrafficRecord:
    predict = MethodTraffic(dims=("batch", "seq"), requests=counts((1, 5), (2, 7), (1, 5)), batches=counts((3, 7)))
    return TrafficRecord(model=model, written_s=NOW_S, methods={"predict": predict}, **changes)


def changed(**of_predict: Any) -> bytes:
    """The JSON of a record with other fields in its method."""
    plain = msgspec.to_builtins(record())
    plain["methods"]["predict"] |= of_predict
    return msgspec.json.encode(plain)


def test_what_was_written_is_read_again() -> None:
    found = read_record(encode_record(record()))
    assert found == record()
    requests = found.methods["predict"].requests
    assert dict(zip(requests.shapes, requests.weights, strict=True)) == {(1, 5): 2.0, (2, 7): 1.0}
    assert (requests.seen, requests.error_max) == (3, 0.0)


@given(st.binary(max_size=400))
def test_garbage_is_no_record_and_no_other_error(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_record(data)


@given(st.data())
def test_a_record_with_bytes_exchanged_is_read_within_its_bounds_or_not_at_all(data: st.DataObject) -> None:
    whole = bytearray(encode_record(record()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_record(bytes(whole))
    except msgspec.MsgspecError:
        return
    for method in found.methods.values():
        for one in (method.requests, method.batches):
            assert len(one.shapes) == len(one.weights)
            assert all(len(shape) == len(method.dims) for shape in one.shapes)
            assert all(0 <= weight <= 1e12 for weight in one.weights)


@pytest.mark.parametrize(
    "data",
    [
        changed(requests={"seen": 1, "error_max": 0, "shapes": [[1, 2]], "weights": []}),
        changed(requests={"seen": 1, "error_max": 0, "shapes": [[1]], "weights": [1]}),
        changed(requests={"seen": 1, "error_max": 0, "shapes": [[1, -2]], "weights": [1]}),
        changed(requests={"seen": 1, "error_max": 0, "shapes": [[1, 1 << 40]], "weights": [1]}),
        changed(requests={"seen": 1, "error_max": 0, "shapes": [[1, 2]], "weights": [1e300]}),
        changed(requests={"seen": 1, "error_max": 0, "shapes": [[1, 2]] * 5000, "weights": [1] * 5000}),
        changed(dims=["d"] * 9),
        changed(more=1),
        encode_record(record(format=2)),
        b"[" * 100_000,
        b" " * (traffic_record.RECORD_BYTES_MAX + 1),
    ],
)
def test_a_record_out_of_its_bounds_is_none(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_record(data)


def test_one_bad_record_hides_no_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(record_path("toy", "a1"), encode_record(record()))
    store.put(record_path("toy", "b2"), b"{}")
    store.put(record_path("toy", "c3"), encode_record(record("other")))
    store.put(record_path("toys", "d4"), encode_record(record("toys")))
    found, problems = read_records(store, "toy")
    assert found == [record()]
    assert sorted(problems) == [record_path("toy", "b2"), record_path("toy", "c3")]
    assert "it is one of model 'other'" in problems[record_path("toy", "c3")]


def test_expired_records_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put(record_path("toy", "a1"), encode_record(record()))
    later_s = time.time() + traffic_record.EXPIRED_S
    monkeypatch.setattr(time, "time", lambda: later_s - 60)
    assert len(read_records(store, "toy")[0]) == 1
    monkeypatch.setattr(time, "time", lambda: later_s + 60)
    assert read_records(store, "toy") == ([], {})


def test_only_the_newest_of_very_many_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_record, "RECORDS_MAX", 3)
    store = LocalStore(tmp_path)
    for number in range(5):
        store.put(record_path("toy", f"n{number}"), encode_record(record()))
    assert len(read_records(store, "toy")[0]) == 3
