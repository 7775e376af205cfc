"""A catalog is read from a store without jax, and what is wrong with one model disturbs no other."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from cache.errors import Damaged, StoreUnavailable
from cache.local_store import LocalStore
from tests.warmpool.served import method, tensor
from tests.warmpool.stored_version import PREDICT, WEIGHTS, executable, put, target
from warmpool import manifest as stored
from warmpool.arena import regions
from warmpool.catalog import load_order, read_catalog, read_target, verify_weights
from warmpool.manifest import MethodSpec, Serving


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def replaced(store, path, change):
    """Change stored JSON."""
    document = msgspec.json.decode(store.get(path))
    change(document)
    store.put(path, msgspec.json.encode(document))


def test_an_empty_store_has_no_models_and_no_problems(store):
    catalog = read_catalog(store)
    assert (catalog.models, catalog.problems, catalog.arena_bytes) == ({}, {}, 0)


def test_a_published_model_is_read_with_where_its_files_are(store):
    manifest = put(store)
    catalog = read_catalog(store)
    model = catalog.models["tiny"]
    assert model.manifest == manifest
    assert model.key == "tiny/1"
    assert model.manifest_file == store.root / "models/tiny/1/manifest.json"
    assert model.weights_file.read_bytes() == WEIGHTS
    predict = model.method(None)
    assert predict is model.methods["predict"] is model.method("predict")
    assert (predict.model, predict.version, predict.name) == ("tiny", "1", "predict")
    assert (predict.batch, list(predict.dims)) == ("batch", ["batch", "seq"])
    assert model.method("unheard") is None


def test_what_serving_names_is_served_and_nothing_else(store):
    put(store, version="1")
    put(store, version="2", serving=False)
    put(store, "unserved", serving=False)
    catalog = read_catalog(store)
    assert {name: model.manifest.version for name, model in catalog.models.items()} == {"tiny": "1"}
    store.put(stored.serving_path("tiny"), stored.encode(Serving(stable="2")))
    assert read_catalog(store).models["tiny"].manifest.version == "2"


def test_a_method_has_the_dimensions_that_its_own_inputs_use(store):
    fixed = MethodSpec(programs={"*": "p"}, symbolic=True, inputs=(tensor("x", "int8", 3),), outputs=())
    only_seq = msgspec.structs.replace(fixed, inputs=(tensor("x", "int8", "seq"),))
    put(store, methods={"fixed": fixed, "only_seq": only_seq, "predict": PREDICT})
    methods = read_catalog(store).models["tiny"].methods
    assert {name: (list(one.dims), one.batch) for name, one in methods.items()} == {
        "fixed": ([], None),
        "only_seq": (["seq"], None),
        "predict": (["batch", "seq"], "batch"),
    }


def bad_manifest(change):
    return lambda store: replaced(store, stored.manifest_path("bad", "1"), change)


def bad_tensor(which, **changes):
    return bad_manifest(lambda document: document["methods"]["predict"][which][0].update(changes))


def bad_mask(**changes):
    mask = {
        "name": "m",
        "dtype": "int32",
        "shape": ["batch", "seq"],
        "pad": 0,
        "low": 0,
        "high": 1,
        "length_mask": True,
    }
    return bad_manifest(lambda document: document["methods"]["predict"]["inputs"].append(mask | changes))


def bad_dim(**changes):
    return bad_manifest(lambda document: document["dims"][0].update(changes))


def bad_weight(**changes):
    weight = {"name": "w", "dtype": "float32", "shape": [4], "offset": 0} | changes
    return bad_manifest(lambda document: document["weights"].update(tensors=[weight], size_bytes=16))


BAD_MASKS: tuple[dict[str, Any], ...] = (
    *(
        {"shape": shape}
        for shape in (["seq"], ["batch"], [], ["batch", 4], ["seq", "batch"], ["batch", "batch", "seq"])
    ),
    {"pad": None},
    {"pad": 1},
    {"high": None},
    {"low": -1},
    {"length_mask": False},
)
BAD = {
    "no manifest": lambda store: store.local_path(stored.manifest_path("bad", "1")).unlink(),
    "no weights": lambda store: store.local_path(stored.weights_path(hashlib.sha256(b"bad").hexdigest())).unlink(),
    "serving is no JSON": lambda store: store.put(stored.serving_path("bad"), b"{"),
    "serving names no version": lambda store: store.put(stored.serving_path("bad"), b"{}"),
    "serving names no path": lambda store: store.put(stored.serving_path("bad"), b'{"stable":"../x"}'),
    "manifest is no JSON": lambda store: store.put(stored.manifest_path("bad", "1"), b"\xff"),
    "manifest is empty": lambda store: store.put(stored.manifest_path("bad", "1"), b""),
    "manifest of a later format": bad_manifest(lambda document: document.update(format=2)),
    "manifest with an unknown field": bad_manifest(lambda document: document.update(more=1)),
    "manifest of another model": bad_manifest(lambda document: document.update(model="other")),
    "manifest of another version": bad_manifest(lambda document: document.update(version="2")),
    "default method that does not exist": bad_manifest(lambda document: document.update(default_method="other")),
    "dimension without sizes": bad_dim(sizes=[]),
    **{f"dimension of the size {size}": bad_dim(sizes=[1, 2, 4, size]) for size in (2**31, 2**40, 2**62, 2**63, 2**70)},
    "dimension of no size": bad_dim(sizes=[0, 1]),
    "dimension whose sizes descend": bad_dim(sizes=[4, 2]),
    "dimension without a maximum": bad_dim(max=0),
    "dimension of a huge maximum": bad_dim(max=2**70),
    "dimension twice": bad_manifest(lambda document: document["dims"].append(document["dims"][0])),
    "two batch dimensions": bad_manifest(lambda document: document["dims"][1].update(batch=True)),
    "input twice": bad_manifest(
        lambda document: document["methods"]["predict"]["inputs"].append(document["methods"]["predict"]["inputs"][0])
    ),
    **{f"input of the size {size}": bad_tensor("inputs", shape=[size]) for size in (2**31, 2**62, 2**63, 2**70, -1)},
    "input of nothing and the size 2^62": bad_tensor("inputs", shape=[0, 2**62]),
    "input of the rank 9": bad_tensor("inputs", shape=[1] * 9),
    "input of an expression": bad_tensor("inputs", shape=["2*batch"]),
    "input with a pad that is none": bad_tensor("inputs", pad=2**40),
    "input with a bound that is none": bad_tensor("inputs", low=1.5),
    "length mask that nothing gives the length of": bad_tensor("inputs", length_mask=True, pad=0, low=0, high=1),
    **{f"length mask with {changes}": bad_mask(**changes) for changes in BAD_MASKS},
    "output that is larger than any": bad_tensor("outputs", shape=["batch", "2^24", "2^24"]),
    "output that nothing holds": bad_tensor("outputs", shape=["9^9^9^9"]),
    "output of less than nothing": bad_tensor("outputs", shape=["batch - 2"]),
    "output divided by nothing": bad_tensor("outputs", shape=["mod(batch, 0)"]),
    "output nested deep": bad_tensor("outputs", shape=["(" * 9000 + "1" + ")" * 9000]),
    "more outputs than memory has room for": bad_manifest(
        lambda document: document["methods"]["predict"].update(
            outputs=[{"name": f"o{index}", "dtype": "float64", "shape": [2**31 - 1]} for index in range(5)]
        )
    ),
    **{
        f"weight with {changes}": bad_weight(**changes)
        for changes in (
            {"dtype": "object"},
            {"dtype": ""},
            {"shape": [5]},
            {"shape": [-1]},
            {"shape": [2**63]},
            {"shape": [0, 2**63]},
            {"offset": -64},
            {"offset": 1},
            {"offset": 64},
        )
    },
    "output of an unknown dimension": bad_tensor("outputs", shape=["batch", "2*length"]),
    "output of no expression": bad_tensor("outputs", shape=["batch", "2*"]),
    "input of an unknown dimension": bad_tensor("inputs", shape=["batch", "length"]),
    "input of an unknown dtype": bad_tensor("inputs", dtype="float31"),
    "input of a dtype that the wire lacks": bad_tensor("inputs", dtype="complex64"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_model_that_cannot_be_served_is_a_problem_and_the_others_are_served(store, kind, caplog):
    put(store, "good")
    put(store, "bad", weights=b"bad")
    BAD[kind](store)
    with caplog.at_level(logging.CRITICAL):
        catalog = read_catalog(store)
    assert list(catalog.models) == ["good"]
    assert list(catalog.problems) == ["bad"]
    assert catalog.problems["bad"]
    assert str(store.root) not in catalog.problems["bad"]
    assert catalog.arena_bytes > 0


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "bool"])
def test_a_length_mask_beside_an_input_of_its_dimension_is_no_problem(store, dtype):
    bounds = {"pad": False} if dtype == "bool" else {"pad": 0, "low": 0, "high": 1}
    mask = tensor("m", dtype, "batch", "seq", length_mask=True, **bounds)
    alone = tensor("m", dtype, "seq", length_mask=True, **bounds)
    unbatched = MethodSpec(
        programs={"*": "p"}, symbolic=True, inputs=(alone, tensor("x", "int8", "seq")), outputs=(tensor("y", "int8"),)
    )
    put(
        store,
        methods={"predict": msgspec.structs.replace(PREDICT, inputs=(mask, *PREDICT.inputs)), "unbatched": unbatched},
    )
    catalog = read_catalog(store)
    assert catalog.problems == {}
    methods = catalog.models["tiny"].methods
    assert [methods[name].spec.required for name in ("predict", "unbatched")] == [["ids", "scale"], ["x"]]


def test_weights_that_fit_their_blob_are_no_problem(store):
    put(store)
    replaced(
        store,
        stored.manifest_path("tiny", "1"),
        lambda document: document["weights"].update(
            tensors=[
                {"name": "w", "dtype": "bfloat16", "shape": [2, 4], "offset": 0},
                {"name": "none", "dtype": "float32", "shape": [0, 9], "offset": 0},
            ],
            size_bytes=16,
        ),
    )
    assert read_catalog(store).problems == {}


def test_a_failure_nobody_expected_is_the_problem_of_its_model_alone(store, caplog):
    class Broken(LocalStore):
        def get(self, path, *, bytes_max=None):
            if "bad" in path:
                raise ZeroDivisionError("a secret")
            return super().get(path, bytes_max=bytes_max)

    put(store, "good")
    put(store, "bad", weights=b"bad")
    with caplog.at_level(logging.CRITICAL):
        catalog = read_catalog(Broken(store.root))
    assert (list(catalog.models), catalog.problems) == (["good"], {"bad": "it cannot be read (ZeroDivisionError)"})


def test_a_problem_names_what_is_wrong(store):
    put(store, "bad")
    store.put(stored.manifest_path("bad", "1"), b"{}")
    problem = read_catalog(store).problems["bad"]
    assert problem.startswith("models/bad/1/manifest.json is damaged: ")
    put(store, "bad", format=2)
    assert "its format is 2, this release reads 1" in read_catalog(store).problems["bad"]


def test_versions_that_are_not_served_are_not_walked(store, monkeypatch):
    for version in ("1", "2", "3"):
        put(store, version=version, serving=version == "3")
    walked: list[str] = []

    def noted(walk):
        def walk_and_note(folder):
            walked.append(str(folder))
            return walk(folder)

        return walk_and_note

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, noted(getattr(os, name)))
    assert read_catalog(store).models["tiny"].manifest.version == "3"
    assert walked == [str(store.root / "models")]


def test_files_that_lie_about_are_no_models(store):
    put(store)
    store.put("models/README", b"")
    store.put("models/tiny/notes/serving.txt", b"")
    catalog = read_catalog(store)
    assert (list(catalog.models), catalog.problems) == (["tiny"], {})


def test_the_arena_holds_the_largest_bucket_of_any_method(store):
    wide = MethodSpec(programs={"*": "p"}, symbolic=True, inputs=(tensor("x", "float32", "batch", 1000),), outputs=())
    put(store, "one")
    put(store, "two", methods={"predict": PREDICT, "wide": wide})
    catalog = read_catalog(store)
    assert catalog.arena_bytes == 8 * 1000 * 4
    placed = regions([("int32", (8, 16)), ("float32", ()), ("int8", (8, 33))])
    one = read_catalog_of(store, "one")
    assert one.arena_bytes == placed[-1].end


def test_the_arena_has_room_for_an_output_that_shrinks_where_inputs_grow(store):
    shrinking = MethodSpec(
        programs={"*": "p"},
        symbolic=True,
        inputs=(tensor("x", "int8", "batch"),),
        outputs=(tensor("y", "int8", "1000 - batch"),),
    )
    put(store, methods={"predict": shrinking})
    assert read_catalog(store).arena_bytes == 64 + 999


def read_catalog_of(store, name):
    catalog = read_catalog(store)
    for other in [other for other in catalog.models if other != name]:
        del catalog.models[other]
    return catalog


@pytest.mark.parametrize(
    ("inputs", "outputs", "mergeable"),
    [
        ([tensor("x", "int8", "batch")], [tensor("y", "int8", "batch", 3)], True),
        ([tensor("x", "int8", "batch")], [tensor("y", "int8")], False),
        ([tensor("x", "int8", "batch")], [tensor("y", "int8", "2*batch")], False),
        ([tensor("x", "int8", "batch"), tensor("scale", "int8")], [tensor("y", "int8", "batch")], False),
        ([tensor("x", "int8", "batch"), tensor("table", "int8", "seq")], [tensor("y", "int8", "batch")], False),
        ([tensor("x", "int8", "seq")], [tensor("y", "int8", "seq")], False),
        ([tensor("x", "int8")], [tensor("y", "int8")], False),
    ],
)
def test_rows_merge_only_where_every_tensor_has_the_batch_dimension_first(inputs, outputs, mergeable):
    assert method(inputs, outputs).mergeable is mergeable


def test_a_bucket_gives_every_tensor_its_shape():
    served = method(list(PREDICT.inputs), list(PREDICT.outputs))
    assert served.inputs_of({"batch": 2, "seq": 4}) == (("int32", (2, 4)), ("float32", ()))
    assert served.outputs_of({"batch": 2, "seq": 4}) == (("int8", (2, 9)),)


def test_a_target_is_read_or_was_never_published(store):
    put(store)
    model = read_catalog(store).models["tiny"]
    assert read_target(store, model, "f" * 16) is None
    wanted = target(executable("a"))
    store.put(stored.target_path("tiny", "1", "f" * 16), stored.encode(wanted))
    assert read_target(store, model, "f" * 16) == wanted
    store.put(stored.target_path("tiny", "1", "f" * 16), b"[]")
    with pytest.raises(Damaged, match=r"models/tiny/1/targets/f+\.json is damaged"):
        read_target(store, model, "f" * 16)


def test_minimum_sets_of_all_models_load_first_then_the_models_in_turn():
    order = load_order(
        {
            "a": target(executable("a1"), executable("a2", minimum=True), executable("a3"), executable("a4")),
            "b": target(executable("b1", minimum=True), executable("b2")),
            "c": target(),
        }
    )
    assert [spec.key for _, spec in order] == ["a2", "b1", "a1", "b2", "a3", "a4"]
    assert [key for key, _ in order] == ["a", "b", "a", "b", "a", "a"]
    assert load_order({}) == []


def test_whole_weights_are_verified_and_others_are_not(store):
    put(store)
    model = read_catalog(store).models["tiny"]
    identity = verify_weights(model)
    assert identity == verify_weights(model)
    for changed in (b"", WEIGHTS[:-1], WEIGHTS + b"x", WEIGHTS[:-1] + b"!"):
        model.weights_file.write_bytes(changed)
        with pytest.raises(Damaged, match="weights of tiny/1"):
            verify_weights(model)
    model.weights_file.unlink()
    model.weights_file.write_bytes(WEIGHTS)
    assert verify_weights(model) != identity, "another file, though of the same content"


def test_a_store_that_cannot_be_read_is_not_an_empty_one(tmp_path):
    """Root may read everything, so the system's refusal is one that even root gets."""
    (tmp_path / "models").symlink_to("models")
    with pytest.raises(StoreUnavailable):
        read_catalog(LocalStore(tmp_path))


def test_reading_a_catalog_loads_no_jax(store):
    put(store)
    code = "import sys; from pathlib import Path; from cache.local_store import LocalStore; "
    code += "from warmpool.catalog import read_catalog; "
    code += "assert list(read_catalog(LocalStore(Path(sys.argv[1]))).models) == ['tiny']; "
    code += "assert not {'jax', 'jaxlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(store.root)], check=True, timeout=60)
