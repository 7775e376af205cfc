"""`warmpool cache explain`: what it says of a store that was made so is known beforehand."""

from __future__ import annotations

import json

import msgspec
import pytest

from cache.artifact import pack, peek, sign, unpack
from cache.data_keys import FileKey, read_keys
from cache.encrypted_store import EncryptedStore
from cache.failures import Failure, record
from cache.ingredients import digest_ingredients
from cache.local_store import LocalStore
from cache.quarantine import quarantine
from cache.signed_store import SignedStore
from cache.signing import ANYONE, Signer
from tests.tiny import BATCH, LENGTH, METHODS, SEQ
from tests.warmpool.command import in_process, warmpool
from warmpool import manifest as stored
from warmpool.cache_commands.explanation import needed
from warmpool.manifest import Manifest, Serving, Target, encode, executable_path, target_path
from warmpool.survey import survey

COUNT = sum(len(method.buckets) for method in METHODS.values())
LADDER = 11  # of these buckets, which the CPU lane has executables of its own for where it is published by now
FLAG = "--xla_cpu_max_isa=AVX2"
OTHER_JAXLIB = "0.0.1"


@pytest.fixture
def store(own_store):
    return LocalStore(own_store)


def run(store, *arguments, **environment):
    """The command on a store whose content is not signed."""
    return in_process("cache", "explain", *arguments, "--store", str(store.root), "--allow-unsigned", **environment)


def explained(store, *arguments, status, **environment):
    """What it says of the one machine that this is, and that it exits so."""
    done = run(store, *arguments, "--json", **environment)
    assert done.returncode == status, done
    (machine,) = json.loads(done.stdout)["machines"]
    return machine


def assert_refused(done, *words):
    """One line says why, after the warning that nothing is signed here."""
    assert (done.returncode, done.stdout) == (1, ""), done
    warning, line = done.stderr.splitlines()
    assert warning.startswith("UNSIGNED")
    assert line.startswith("warmpool cache: explain: ")
    for word in words:
        assert word in line


def executables(machine):
    """Those of the primary lane."""
    own = [one for one in machine["executables"] if not one["ladder"]]
    return {(one["method"], stored.bucket_name(one["bucket"])): one for one in own}


def target_of(store, digest):
    return msgspec.json.decode(store.get(target_path("tiny", "1", digest)), type=Target)


def key_of(store, fingerprint, method, **bucket):
    (key,) = [
        one.key
        for one in target_of(store, fingerprint.digest).executables
        if (one.method, one.bucket) == (method, bucket)
    ]
    return key


def move(store, fingerprint, *, keep=False, **changes):
    """Make what was published here another machine's, with consistent keys. The digest of its fingerprint."""
    target = target_of(store, fingerprint.digest)
    ingredients = {**target.fingerprint, **changes}
    moved = [_moved(store, one, changes, keep=keep) for one in target.executables]
    digest = digest_ingredients(ingredients)[:16]
    store.put(
        target_path("tiny", "1", digest),
        encode(msgspec.structs.replace(target, fingerprint=ingredients, executables=tuple(moved))),
    )
    if not keep:
        store.delete(target_path("tiny", "1", fingerprint.digest))
    return digest


def _moved(store, spec, changes, *, keep):
    data = store.get(executable_path(spec.key))
    header, payload = unpack(data, key=spec.key, trust=ANYONE)
    made_of = header.ingredients | {f"fingerprint.{name}": value for name, value in changes.items()}
    key = digest_ingredients(made_of)
    store.put(executable_path(key), pack(msgspec.structs.replace(header, key=key, ingredients=made_of), bytes(payload)))
    if not keep:
        store.delete(executable_path(spec.key))
    return msgspec.structs.replace(spec, key=key)


def test_where_it_was_published_everything_is_there(store, fingerprint):
    machine = explained(store, "tiny", status=0)
    assert (machine["model"], machine["version"], machine["platform"]) == ("tiny", "1", "cpu")
    assert (machine["fingerprint"], machine["published"]) == (fingerprint.digest, True)
    assert len(machine["executables"]) == COUNT
    assert {(one["state"], one["reason"], one["nearest"]) for one in machine["executables"]} == {("hit", "", None)}
    keys = [one.key for one in target_of(store, fingerprint.digest).executables]
    assert [one["key"] for one in machine["executables"]] == [one["listed_key"] for one in machine["executables"]]
    assert [one["key"] for one in machine["executables"]] == keys


def test_a_process_says_the_same(store):
    done = warmpool("cache", "explain", "tiny", "--store", str(store.root), "--allow-unsigned", "--json")
    assert done.returncode == 0, done
    (machine,) = json.loads(done.stdout)["machines"]
    assert machine == explained(store, "tiny", status=0)


def test_for_another_machine_each_ingredient_is_named_with_both_values(store, fingerprint):
    features = fingerprint.ingredients["cpu_features"]
    theirs = " ".join(["amx_made_up", *features.split()[1:]])
    digest = move(store, fingerprint, cpu_features=theirs, jaxlib=OTHER_JAXLIB, xla_flags=FLAG)
    machine = explained(store, "tiny", status=1)
    assert (machine["fingerprint"], machine["published"]) == (fingerprint.digest, False)
    assert len(machine["executables"]) == COUNT + LADDER
    listed = {(one.method, stored.bucket_name(one.bucket)): one.key for one in target_of(store, digest).executables}
    for identity, one in executables(machine).items():
        assert (one["state"], one["reason"], one["listed_key"]) == ("missing", "", "")
        assert one["nearest"] == {
            "key": listed[identity],
            "listed_by": [["tiny/1", digest]],
            "differences": [
                {
                    "ingredient": "fingerprint.cpu_features",
                    "wanted": features,
                    "found": theirs,
                    "only_wanted": [features.split()[0]],
                    "only_found": ["amx_made_up"],
                },
                {
                    "ingredient": "fingerprint.jaxlib",
                    "wanted": fingerprint.ingredients["jaxlib"],
                    "found": OTHER_JAXLIB,
                    "only_wanted": [fingerprint.ingredients["jaxlib"]],
                    "only_found": [OTHER_JAXLIB],
                },
                {
                    "ingredient": "fingerprint.xla_flags",
                    "wanted": "",
                    "found": FLAG,
                    "only_wanted": [],
                    "only_found": [FLAG],
                },
            ],
        }


def test_of_several_machines_the_nearest_is_compared(store, fingerprint):
    far = move(store, fingerprint, keep=True, jaxlib=OTHER_JAXLIB, machine="other", cpu_cores="999")
    near = move(store, fingerprint, keep=True, cpu_cores="998", xla_flags="--x")
    for one in target_of(store, fingerprint.digest).executables:
        store.delete(executable_path(one.key))
    (one,) = explained(store, "tiny", "batch=2", "--method", "predict", status=1)["executables"]
    assert one["nearest"]["listed_by"] == [["tiny/1", near]] != [["tiny/1", far]]
    assert [each["ingredient"] for each in one["nearest"]["differences"]] == [
        "fingerprint.cpu_cores",
        "fingerprint.xla_flags",
    ]
    assert one["listed_key"] == one["key"]  # the target of this machine names it, and it is gone


def test_flags_of_the_environment_make_everything_miss_and_are_named(store, fingerprint):
    machine = explained(store, "tiny", status=1, XLA_FLAGS=FLAG)
    assert machine["fingerprint"] != fingerprint.digest
    assert len(machine["executables"]) == COUNT + LADDER
    assert {one["state"] for one in machine["executables"]} == {"missing"}
    for one in executables(machine).values():
        (change,) = one["nearest"]["differences"]
        assert (change["ingredient"], change["wanted"], change["found"]) == ("fingerprint.xla_flags", FLAG, "")


def test_an_option_of_the_compiler_is_named_and_instances_go_on_with_what_is_listed(store, fingerprint):
    machine = explained(store, "tiny", "batch=2", status=1, JAX_DEFAULT_MATMUL_PRECISION="highest")
    assert (machine["fingerprint"], machine["published"]) == (fingerprint.digest, True)
    for one in machine["executables"]:
        assert (one["state"], one["listed_fault"]) == ("missing", "")
        assert one["listed_key"] == one["nearest"]["key"] != one["key"]
        (change,) = one["nearest"]["differences"]
        assert change["ingredient"] == "option.JAX_DEFAULT_MATMUL_PRECISION"
        assert (change["wanted"], change["found"]) == ("highest", "")


def test_what_is_wrong_with_each_key_is_told(store, fingerprint):
    keys = {batch: key_of(store, fingerprint, "predict", batch=batch) for batch in BATCH.sizes}
    gone, cut, alien, distrusted = (executable_path(keys[batch]) for batch in (1, 2, 4, 8))
    failed = key_of(store, fingerprint, "invert", batch=1)
    aside = key_of(store, fingerprint, "invert", batch=2)
    other = move(store, fingerprint, keep=True, cpu_cores="999")
    store.delete(gone)
    store.put(cut, store.get(cut)[:-7])
    moved = {(one.method, *one.bucket.values()): one.key for one in target_of(store, other).executables}
    store.put(alien, _renamed(store, moved["predict", 4], keys[4]))
    signer = Signer.generate()
    store.put(distrusted, sign("it", store.get(distrusted), signer))
    store.delete(executable_path(failed))
    record(store, Failure.now(key=failed, what="invert batch=1", reason="out of luck", fingerprint=fingerprint.digest))
    quarantine(store, executable_path(aside), "it is damaged: bits fell over")
    found = executables(explained(store, "tiny", "--distrusted-keys", signer.key_id, status=1))
    states = {identity: one["state"] for identity, one in found.items() if one["state"] != "hit"}
    assert states == {
        ("predict", "batch=1"): "missing",
        ("predict", "batch=2"): "damaged",
        ("predict", "batch=4"): "foreign",
        ("predict", "batch=8"): "untrusted",
        ("invert", "batch=1"): "failed",
        ("invert", "batch=2"): "missing",
    }
    assert "its lengths say otherwise" in found["predict", "batch=2"]["reason"]
    cores = fingerprint.ingredients["cpu_cores"]
    assert f"fingerprint.cpu_cores: wanted {cores!r}, found '999'" in found["predict", "batch=4"]["reason"]
    assert "is distrusted" in found["predict", "batch=8"]["reason"]
    assert found["predict", "batch=1"]["reason"] == ""
    assert found["invert", "batch=1"]["reason"].endswith("out of luck")
    assert found["invert", "batch=2"]["reason"].endswith("it is damaged: bits fell over")


def _renamed(store, key, name):
    """An artifact that says it has another key than it is made of."""
    data = store.get(executable_path(key))
    _, payload = unpack(data, key=key, trust=ANYONE)
    return pack(msgspec.structs.replace(peek("it", data), key=name), bytes(payload))


def test_what_a_target_lists_otherwise_is_looked_at_too(store, fingerprint):
    store.delete(executable_path(key_of(store, fingerprint, "scale", length=4)))
    option = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    found = executables(explained(store, "tiny", "--method", "scale", status=1, **option))
    assert found["scale", "length=4"]["listed_fault"] == "missing"
    assert found["scale", "length=10"]["listed_fault"] == ""
    assert found["scale", "length=4"]["nearest"] is not None, "any other in the store is compared with"


def test_without_any_target_the_plan_of_the_manifest_is_explained(store, fingerprint):
    store.delete(target_path("tiny", "1", fingerprint.digest))
    machine = explained(store, "tiny", status=1)
    assert not machine["published"]
    assert {one["state"] for one in executables(machine).values()} == {
        "hit"
    }  # they lie there, but no instance loads them
    assert {(method, stored.bucket_name(sizes)) for method in METHODS for sizes in METHODS[method].buckets} == set(
        executables(machine)
    )
    names = executables(explained(store, "tiny", "--method", "tokens", status=1, XLA_FLAGS=FLAG))
    assert len(names) == len(BATCH.sizes) * len(SEQ.sizes)
    for one in names.values():
        assert one["nearest"]["listed_by"] == []
        assert [each["ingredient"] for each in one["nearest"]["differences"]] == ["fingerprint.xla_flags"]


def test_beside_another_primary_lane_the_cpu_needs_the_ladder_alone(store, fingerprint):
    def version():
        (found,) = [one for one in survey(SignedStore(store, ANYONE)).versions if one.manifest.model == "tiny"]
        return found

    def names(which):
        return [(method, stored.bucket_name(bucket), *lane) for method, bucket, *lane in which]

    listed = target_of(store, fingerprint.digest).executables
    own = names((one.method, one.bucket, False) for one in listed)
    ladder = names((one.method, one.bucket, True) for one in listed if one.ladder)
    assert (len(own), len(ladder)) == (COUNT, LADDER)
    assert names(needed(version(), "another machine", primary=False)) == ladder
    assert names(needed(version(), "another machine")) == own + ladder
    assert names(needed(version(), "another machine", platform="cuda")) == own
    store.delete(target_path("tiny", "1", fingerprint.digest))
    assert sorted(names(needed(version(), "another machine", primary=False))) == sorted(ladder)


def test_a_version_that_is_not_served_is_explained_when_it_is_asked_for(store, fingerprint):
    manifest = msgspec.json.decode(store.get(stored.manifest_path("tiny", "1")), type=Manifest)
    program = "5e" * 32
    methods = {"scale": msgspec.structs.replace(manifest.methods["scale"], programs={"*": program})}
    newer = msgspec.structs.replace(manifest, version="2", methods=methods, default_method="scale")
    store.put(stored.manifest_path("tiny", "2"), encode(newer))
    machine = explained(store, "tiny", "--version", "2", status=1)
    found = executables(machine)
    assert set(found) == {("scale", stored.bucket_name({"length": size})) for size in LENGTH.sizes}
    for one in found.values():
        assert one["nearest"]["listed_by"] == [["tiny/1", fingerprint.digest]]
        (change,) = one["nearest"]["differences"]
        assert (change["ingredient"], change["wanted"]) == ("program", program)
        assert change["found"] == manifest.methods["scale"].programs["*"]
    assert explained(store, "tiny", "--method", "scale", status=0)["version"] == "1"


def test_a_person_sees_once_what_all_buckets_have_and_only_what_differs_in_a_long_list(store, fingerprint):
    features = fingerprint.ingredients["cpu_features"].split()
    digest = move(store, fingerprint, cpu_features=" ".join(["amx_made_up", *features[1:]]), jaxlib=OTHER_JAXLIB)
    done = run(store, "tiny")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f"0 of {COUNT + LADDER} executables are there")
    words = [line.split() for line in lines]
    assert ["fingerprint.cpu_features", f"+{features[0]}", "-amx_made_up"] in words
    assert ["fingerprint.jaxlib", fingerprint.ingredients["jaxlib"], OTHER_JAXLIB] in words
    assert done.stdout.count("fingerprint.jaxlib") == 2, "once for each lane"
    assert f"of tiny/1 on {digest}, and likewise for the others" in done.stdout
    assert features[2] not in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), ("model 'nothing' is not published",)),
        (("tiny", "--version", "9"), ("version '9' of 'tiny' is not published", "allowed with --version: 1")),
        (("tiny", "--method", "guess"), ("--method 'guess'", "predict, tokens")),
        (("tiny", "batch=3"), ("BUCKET 'batch=3'", "batch=1,seq=16", "length=4")),
    ],
)
def test_what_is_not_there_is_named_with_what_is(store, arguments, words):
    assert_refused(run(store, *arguments), *words)


def test_a_model_that_is_not_served_asks_for_a_version(store):
    store.delete(stored.serving_path("tiny"))
    assert_refused(run(store, "tiny"), "no version of 'tiny' is served", "allowed with --version: 1")
    store.put(stored.serving_path("tiny"), encode(Serving(stable="1")))
    assert run(store, "tiny", "batch=1", "--method", "predict").returncode == 0


def test_what_cannot_be_read_here_is_said_so_and_the_rest_explained(store, tmp_path):
    machine = explained(store, "tiny", status=0)
    first = machine["executables"][0]["key"]
    FileKey.write(tmp_path / "lost")
    encrypted = EncryptedStore(store, read_keys(str(tmp_path / "lost")))
    encrypted.put(executable_path(first), store.get(executable_path(first)))
    found = explained(store, "tiny", status=1)["executables"]
    assert [one["key"] for one in found if one["state"] != "hit"] == [first]
    assert (found[0]["state"], found[0]["reason"]) == (
        "unreadable",
        f"{executable_path(first)!r} is encrypted: give the key as encryption_key",
    )


def test_a_model_whose_manifest_cannot_be_read_is_not_just_said_to_be_unpublished(store):
    (version,) = set(store.names("models/tiny")) - {"serving.json"}
    path = stored.manifest_path("tiny", version)
    store.put(path, b"{}")
    assert_refused(run(store, "tiny"), "model 'tiny' is not published", path)
