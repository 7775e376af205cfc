"""Stored records are read as they were written, by this release and by no other that would half understand them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool import manifest as stored
from warmpool.manifest import (
    DimSpec,
    ExecutableSpec,
    Manifest,
    MemorySpec,
    MethodSpec,
    ProofSpec,
    RolloutSpec,
    Serving,
    Target,
    TensorSpec,
    ToleranceSpec,
    WeightsSpec,
)

MANIFEST = Manifest(
    model="tiny",
    version="1",
    default_method="predict",
    dims=(DimSpec(name="batch", max=9, sizes=(1, 8), batch=True),),
    methods={
        "predict": MethodSpec(
            programs={"*": "p"},
            symbolic=True,
            inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 3), pad=-1.5, low=-2, high=True),),
            outputs=(TensorSpec(name="y", dtype="bool", shape=("batch", "2*batch")),),
        )
    },
    weights=WeightsSpec(digest="d", size_bytes=0, tensors=()),
    tolerance=ToleranceSpec(rtol=1e-5, atol=0),
)
TARGET = Target(
    fingerprint={"b": "2", "a": "1"},
    executables=(
        ExecutableSpec(
            key="k", method="predict", bucket={"batch": 8}, minimum=True, ladder=False, cost_us=1.5, size_bytes=3
        ),
    ),
    proofs=(ProofSpec(method="predict", kind="padding", cases=4, error_max=0.0),),
)
MEASURED = msgspec.structs.replace(
    TARGET.executables[0], memory=MemorySpec(code=1 << 20, temp=3, arguments=0, outputs=1 << 40)
)
ROLLOUT = Serving(
    stable="1",
    canary="2",
    share=0.25,
    mirror=0.5,
    previous="0",
    sticky=True,
    changed_s=1.5,
    reason="it was time",
    rollout=RolloutSpec(started_s=1.5, bake_s=60.0, requests_min=9, numerics="finite", by_hand=True),
)
RECORDS = [MANIFEST, TARGET, msgspec.structs.replace(TARGET, executables=(MEASURED,)), Serving(stable="1"), ROLLOUT]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record):
    assert msgspec.json.decode(stored.encode(record), type=type(record)) == record


@given(st.none() | st.booleans() | st.integers(-(2**31), 2**32) | st.floats(allow_nan=False, allow_infinity=False))
def test_pads_and_bounds_keep_their_type_and_value(value):
    spec = TensorSpec(name="x", dtype="float32", shape=(), pad=value, low=value, high=value)
    again = msgspec.json.decode(stored.encode(spec), type=TensorSpec)
    assert again == spec
    assert type(again.pad) is type(value)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_an_unknown_field_is_refused_wherever_it_stands(record):
    plain = msgspec.to_builtins(record)
    for changed in with_more(plain):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(changed, type=type(record))


def with_more(value):
    """The value with an unknown field in each of its records; a mapping of names may have any, so not in those."""
    if isinstance(value, dict):
        if not value.keys() & {"*", "a", "batch", "predict"}:
            yield value | {"unheard_of": 1}
        for key, inner in value.items():
            for changed in with_more(inner):
                yield value | {key: changed}
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            for changed in with_more(inner):
                yield [*value[:index], changed, *value[index + 1 :]]


def test_the_same_record_is_the_same_bytes():
    again = msgspec.json.decode(stored.encode(TARGET), type=Target)
    assert stored.encode(again) == stored.encode(TARGET)
    assert stored.encode(TARGET).endswith(b"}\n")


def test_a_target_that_says_nothing_of_memory_is_read_and_stays_the_bytes_that_it_was():
    """As every store has them that was made before: to write one anew would be a change that nobody made."""
    before = (
        b'{"format":1,"fingerprint":{"b":"2","a":"1"},"executables":[{"key":"k","method":"predict","bucket":{"batch":8},'
        b'"minimum":true,"ladder":false,"cost_us":1.5,"size_bytes":3}],'
        b'"proofs":[{"method":"predict","kind":"padding","cases":4,"error_max":0.0}],"references":[]}'
    )
    found = msgspec.json.decode(before, type=Target)
    assert found == TARGET
    assert found.executables[0].memory is None
    assert msgspec.json.format(stored.encode(found), indent=-1) == before


def test_an_input_that_no_caller_may_leave_out_is_read_and_stays_the_bytes_that_it_was():
    """A version is named by its manifest's digest."""
    before = b'{"name":"x","dtype":"float32","shape":["batch",3],"pad":-1.5,"low":-2,"high":true}'
    found = msgspec.json.decode(before, type=TensorSpec)
    assert found == MANIFEST.methods["predict"].inputs[0]
    assert found.may_be_left_out is False
    assert msgspec.json.format(stored.encode(found), indent=-1) == before
    mask = msgspec.structs.replace(found, length_mask=True)
    again = msgspec.json.decode(stored.encode(mask), type=TensorSpec)
    assert (again, again.may_be_left_out) == (mask, True)
    assert mask != found
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(before[:-1] + b',"length_mask":false}', type=TensorSpec)


def test_what_is_served_as_usual_is_the_bytes_that_it_was():
    """Older releases refuse a field that they do not know."""
    assert stored.encode(Serving(stable="1")) == b'{\n "format": 1,\n "stable": "1"\n}\n'


def test_the_versions_that_are_served_are_each_named_once():
    assert ROLLOUT.versions == ("1", "2", "0")
    assert Serving(stable="1").versions == ("1",)
    assert Serving(stable="1", canary="2", previous="1").versions == ("1", "2")


@pytest.mark.parametrize("field", ["share", "mirror"])
@pytest.mark.parametrize("value", [b"1.01", b"-0.01", b'"0.5"', b"1e400"])
def test_a_share_is_from_nothing_to_all(field, value):
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(b'{"stable":"1","' + field.encode() + b'":' + value + b"}", type=Serving)


def test_a_bucket_keeps_the_order_of_its_dimensions():
    spec = msgspec.structs.replace(TARGET.executables[0], bucket={"width": 2, "batch": 8, "seq": 4})
    again = msgspec.json.decode(stored.encode(spec), type=ExecutableSpec)
    assert stored.bucket_name(again.bucket) == "width=2,batch=8,seq=4"


def test_paths_are_those_of_the_documentation():
    assert stored.program_path("d") == "programs/d"
    assert stored.executable_path("k") == "executables/k"
    assert stored.weights_path("d") == "weights/d"
    assert stored.manifest_path("m", "2") == "models/m/2/manifest.json"
    assert stored.target_path("m", "2", "f") == "models/m/2/targets/f.json"
    assert stored.serving_path("m") == "models/m/serving.json"


@pytest.mark.parametrize(
    ("bucket", "name"), [({"batch": 8, "seq": 128}, "batch=8,seq=128"), ({"seq": 1}, "seq=1"), ({}, "*")]
)
def test_a_buckets_name(bucket, name):
    assert stored.bucket_name(bucket) == name


def test_records_say_their_format():
    assert (MANIFEST.format, TARGET.format, Serving(stable="1").format) == (1, 1, 1)
