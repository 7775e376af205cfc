from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.fitting.observations import BadTrace, Observations, from_file, from_records
from warmpool.manifest import DimSpec
from warmpool.shape_sketch import HALF_LIFE_S, Shape, ShapeSketch
from warmpool.traffic_record import MethodTraffic, TrafficRecord, counts_of

NOW_S = 1.7e9
BATCH = DimSpec(name="batch", max=100, sizes=(1, 4, 8), batch=True)
SEQ = DimSpec(name="seq", max=250, sizes=(16, 64, 250))
DIMS = (BATCH, SEQ)


def sketch(*shapes: Shape, cells_max: int = 2048) -> ShapeSketch:
    found = ShapeSketch(cells_max)
    for shape in shapes:
        found.add(shape, NOW_S)
    return found


def record(
    *requests: Shape,
    batches: tuple[Shape, ...] = (),
    dims: tuple[str, ...] = ("batch", "seq"),
    written_s: float = NOW_S,
    cells_max: int = 2048,
) -> TrafficRecord:
    counted = MethodTraffic(
        dims=dims,
        requests=counts_of(sketch(*requests, cells_max=cells_max), NOW_S),
        batches=counts_of(sketch(*batches), NOW_S),
    )
    return TrafficRecord(model="toy", written_s=written_s, methods={"predict": counted})


def weighed(observations: Observations) -> dict[Shape, float]:
    pairs = zip(observations.shapes.tolist(), observations.weights, strict=True)
    return {tuple(shape): round(float(weight), 6) for shape, weight in pairs}


def test_instances_add_up() -> None:
    seen = from_records([record((1, 5), (2, 7)), record((1, 5), batches=((3, 5),))], "predict", DIMS, NOW_S)
    assert weighed(seen.requests) == {(1, 5): 2.0, (2, 7): 1.0}
    assert weighed(seen.batches) == {(3, 5): 1.0}
    assert seen.requests.count == 3.0


def test_what_was_written_long_ago_counts_less() -> None:
    records = [record((1, 5)), record((1, 5), written_s=NOW_S - HALF_LIFE_S), record((1, 5), written_s=NOW_S + 999)]
    assert weighed(from_records(records, "predict", DIMS, NOW_S).requests) == {(1, 5): 2.5}


def test_records_of_other_methods_and_dimensions_do_not_count() -> None:
    records = [record((5, 1), dims=("seq", "batch")), record((1, 5))]
    assert weighed(from_records(records, "predict", DIMS, NOW_S).requests) == {(1, 5): 1.0}
    assert weighed(from_records(records, "embed", DIMS, NOW_S).requests) == {}


def test_more_rows_than_the_largest_batch_are_the_chunks_that_run() -> None:
    found = from_records([record((19, 5), (16, 6), (8, 7))], "predict", DIMS, NOW_S).requests
    assert weighed(found) == {(8, 5): 2.0, (3, 5): 1.0, (8, 6): 2.0, (8, 7): 1.0}


def test_what_nobody_may_send_is_left_out_and_counted() -> None:
    found = from_records([record((1, 251), (101, 5), (1, 250))], "predict", DIMS, NOW_S).requests
    assert weighed(found) == {(1, 250): 1.0}
    assert found.refused == 2.0


def test_a_size_that_was_rounded_up_beyond_the_limit_is_the_limit() -> None:
    """With 5 cells, lengths have so few bits that 250 is counted as 256 or more."""
    found = from_records([record(*((1, length) for length in range(200, 251)), cells_max=3)], "predict", DIMS, NOW_S)
    assert found.requests.refused == 0
    assert found.requests.shapes[:, 1].max() == 250
    assert found.requests.count == pytest.approx(51)


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 300)), max_size=20))
def test_no_shape_is_larger_than_the_largest_bucket_or_smaller_than_one(shapes: list[Shape]) -> None:
    found = from_records([record(*shapes)], "predict", DIMS, NOW_S).requests
    assert all(1 <= rows <= 8 and 1 <= length <= 250 for rows, length in found.shapes.tolist())
    rows = sum(max(rows, 1) for rows, length in shapes if rows <= 100 and length <= 250)
    assert sum(int(shape[0]) * weight for shape, weight in weighed(found).items()) == rows


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_file_names_dimensions_in_its_header(tmp_path: Path) -> None:
    seen = from_file(write(tmp_path, "at,seq,batch,weight\n0.5,7,2,\n0.9,9,,3\n"), DIMS)
    assert weighed(seen.requests) == {(2, 7): 1.0, (1, 9): 3.0}
    assert seen.batches.count == 0


def test_a_file_without_the_batch_dimension_has_requests_of_one_row(tmp_path: Path) -> None:
    assert weighed(from_file(write(tmp_path, "seq\n7\n7\n"), DIMS).requests) == {(1, 7): 2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at,batch\n1,2\n", "its columns are at, batch; 'seq' is missing"),
        ("", "its columns are ; 'seq' is missing"),
        ("seq\nlong\n", r"line 2 is \['long'\], allowed: whole numbers"),
        ("seq,batch\n7\n,\n", r"line 3 is \['', ''\]"),
        ("seq\n-1\n", "line 2 is .*allowed: numbers from 0"),
        ("seq,weight\n1,inf\n", "line 2 is .*allowed: numbers from 0"),
        ("seq\n\x00\n", "trace.csv"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        from_file(write(tmp_path, text), DIMS)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"absent\.csv cannot be read"):
        from_file(tmp_path / "absent.csv", DIMS)
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(BadTrace, match="image cannot be read"):
        from_file(tmp_path / "image", DIMS)


@given(st.binary(max_size=200))
def test_garbage_in_a_file_is_a_trace_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    path.write_bytes(b"seq,batch\n" + data)
    try:
        found = from_file(path, DIMS)
    except BadTrace:
        return
    assert (found.requests.shapes >= 1).all()
