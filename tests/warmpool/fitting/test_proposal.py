from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cache.local_store import LocalStore
from warmpool.fitting.proposal import NothingToFit, Source, propose
from warmpool.manifest import (
    DimSpec,
    ExecutableSpec,
    Manifest,
    MethodSpec,
    PlanSpec,
    Target,
    TensorSpec,
    ToleranceSpec,
    WeightsSpec,
)
from warmpool.shape_sketch import ShapeSketch
from warmpool.traffic_record import MethodTraffic, TrafficRecord, counts_of, encode_record, record_path

NOW_S = 1.7e9
BATCH = DimSpec(name="batch", max=100, sizes=(1, 8), batch=True)
SEQ = DimSpec(name="seq", max=64, sizes=(16, 64))


def method(*axes: str, symbolic: bool = True, output: str = "batch") -> MethodSpec:
    return MethodSpec(
        programs={"*": "p"},
        symbolic=symbolic,
        inputs=(TensorSpec(name="x", dtype="float32", shape=axes),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(output,)),),
    )


MANIFEST = Manifest(
    model="toy",
    version="1",
    default_method="embed",
    dims=(BATCH, SEQ),
    methods={
        "embed": method("batch", "seq"),
        "fixed": method(output="3"),
        "refusing": method("batch", "seq", symbolic=False),
        "unmeasured": method("batch", "seq"),
        "shrinking": method("batch", "seq", output="seq - 9"),
    },
    weights=WeightsSpec(digest="w", size_bytes=0, tensors=()),
    tolerance=ToleranceSpec(rtol=0, atol=0),
)


def executable(name: str, **bucket: int) -> ExecutableSpec:
    return ExecutableSpec(
        key="k",
        method=name,
        bucket=bucket,
        minimum=False,
        ladder=False,
        cost_us=50.0 + 2.0 * bucket["batch"] * bucket["seq"],
        size_bytes=1,
    )


MEASURED = tuple(
    executable(name, batch=batch, seq=seq)
    for name in ("embed", "shrinking")
    for batch in BATCH.sizes
    for seq in SEQ.sizes
)
TARGET = Target(fingerprint={}, executables=MEASURED, proofs=())


def records(*shapes: tuple[int, int], times: int = 200) -> Source:
    sketch = ShapeSketch()
    for shape in shapes * times:
        sketch.add(shape, NOW_S)
    counts = counts_of(sketch, NOW_S)
    counted = MethodTraffic(dims=("batch", "seq"), requests=counts, batches=counts)
    return Source((TrafficRecord(model="toy", written_s=4e9, methods=dict.fromkeys(MANIFEST.methods, counted)),))


def test_methods_that_cannot_be_fitted_are_left_out_with_the_reason() -> None:
    found = propose(MANIFEST, TARGET, records((2, 4)), list(MANIFEST.methods), None)
    assert [fit.method for fit in found.fits] == ["embed"]
    assert found.skipped == (
        "fixed: it has no dimensions",
        "refusing: it was exported once a bucket: give its dimensions other sizes and publish it",
        "unmeasured: nothing is measured of it on this kind of machine",
        "shrinking: what fits it cannot be compiled: the bucket batch=2,seq=4 has an output of less than no size",
    )
    with pytest.raises(NothingToFit, match="fixed: it has no dimensions"):
        propose(MANIFEST, TARGET, records((2, 4)), ["fixed"], None)


def test_what_is_proposed_is_what_takes_less_than_today() -> None:
    found = propose(MANIFEST, TARGET, records((2, 40)), ["embed"], None)
    plan = found.plans()["embed"]
    assert {"batch": 2, "seq": 40} in plan.buckets
    assert plan.observations == 200.0

    fitted = msgspec.structs.replace(TARGET, plans={"embed": plan})
    again = propose(MANIFEST, fitted, records((2, 40)), ["embed"], None)
    assert again.plans() == {}, "it is today's plan now"
    assert len(again.fits[0].plan("today").buckets) == len(plan.buckets)


def test_a_plan_counts_as_many_buckets_as_it_has() -> None:
    few = PlanSpec(buckets=({"batch": 1, "seq": 64}, {"batch": 8, "seq": 64}), fitted_s=1.0, observations=1.0)
    found = propose(MANIFEST, msgspec.structs.replace(TARGET, plans={"embed": few}), records((2, 40)), ["embed"], None)
    assert len(found.fits[0].plan("fitted").buckets) == 2
    more = propose(MANIFEST, TARGET, records((2, 40), (5, 6), (7, 30)), ["embed"], 5)
    assert len(more.fits[0].plan("fitted").buckets) == 5


def test_records_come_from_a_store_and_bad_ones_are_counted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(record_path("toy", "a"), encode_record(records((1, 1)).records[0]))
    store.put(record_path("toy", "b"), b"[]")
    source = Source.of_store(store, "toy")
    assert (len(source.records), source.unread) == (1, 1)
