"""`warmpool cache ls`: what a store holds, for a program and for a person."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from cache.quarantine import quarantine
from cache.records import decoded
from cache.sightings import mark
from cache.wanted import want
from tests.warmpool.cared_store import CPU, TPU, CaredStore
from warmpool.cache_commands.opened import shown_bytes
from warmpool.manifest import PlanSpec, Target, encode, target_path


@pytest.fixture
def cared(tmp_path):
    return CaredStore(tmp_path)


@pytest.fixture
def listed(cared, capsys):
    """What the command prints with --json, and its exit status."""

    def run():
        outcome = cared.run(capsys, "ls", "--json")
        assert outcome.err == ""
        return outcome.status, outcome.json()

    return run


def test_versions_are_listed_with_what_each_kind_of_machine_has(cared, listed):
    cared.publish(version="1", machines=(CPU, TPU), references=(7,))
    cared.publish(version="2", machines=(), weights="longer")
    status, found = listed()
    assert status == 0
    by_name = {(one["model"], one["version"]): one for one in found["versions"]}
    first, second = by_name["toy", "1"], by_name["toy", "2"]
    assert (first["stable"], second["stable"]) == (False, True)
    assert (first["methods"], first["weights_bytes"], second["weights_bytes"]) == (["predict"], 100, 600)
    assert second["targets"] == []
    targets = {one["fingerprint"]: one for one in first["targets"]}
    assert targets[CPU.digest] == {
        "fingerprint": CPU.digest,
        "platform": "cpu",
        "device_kind": "cpu",
        "jaxlib": "0.12.0",
        "cpu_cores": "2",
        "executables": 2,
        "bytes": sum(cared.file(path).stat().st_size for path in cared.executables(CPU)),
        "missing": 0,
        "fitted": [],
    }
    assert targets[TPU.digest]["cpu_cores"] == ""


def test_methods_with_a_fitted_plan_are_named(cared, listed, capsys):
    cared.publish(machines=(CPU, TPU))
    path = target_path("toy", "1", CPU.digest)
    target = decoded(cared.store.get(path), Target)
    plan = PlanSpec(buckets=({"batch": 1},), fitted_s=1.0, observations=1.0)
    cared.store.put(path, encode(msgspec.structs.replace(target, plans={"predict": plan})))
    targets = {one["fingerprint"]: one["fitted"] for one in listed()[1]["versions"][0]["targets"]}
    assert targets == {CPU.digest: ["predict"], TPU.digest: []}
    assert cared.run(capsys, "ls").out.count("fitted: predict") == 1


def test_what_is_there_is_counted_by_folder(cared, listed):
    cared.publish(machines=(CPU, TPU))
    want(cared.store, "ab", "it is missing")
    _, found = listed()
    content = cared.content()
    for folder, counted in found["folders"].items():
        sizes = [len(data) for path, data in content.items() if path.startswith(f"{folder}/")]
        assert counted == {"objects": len(sizes), "bytes": sum(sizes)}
    assert sum(one["objects"] for one in found["folders"].values()) == len(content)
    assert set(found["folders"]) == {"executables", "models", "programs", "wanted", "weights"}


def test_executables_that_are_not_there_are_missing_and_references_are_not(cared, listed):
    cared.publish(references=(7,))
    (reference,) = {path for path in cared.paths() if path.startswith("executables/")} - set(cared.executables(CPU))
    cared.bottom.delete(reference)
    assert listed()[1]["versions"][0]["targets"][0]["missing"] == 0
    cared.bottom.delete(cared.executables(CPU)[1])
    status, found = listed()
    assert status == 0
    assert found["versions"][0]["targets"][0]["missing"] == 1


def test_what_is_set_aside_and_what_is_wanted_is_listed_until_it_is_there_again(cared, capsys, listed):
    cared.publish()
    path = cared.executables(CPU)[0]
    data = cared.bottom.get(path)
    key = path.removeprefix("executables/")
    kept = quarantine(cared.bottom, path, "it is [red]damaged[/red] " + "and more " * 40)
    assert kept is not None
    want(cared.store, key, "it is damaged")
    _, found = listed()
    assert [one["path"] for one in found["quarantined"]] == [path]
    assert found["quarantined"][0]["reason"] == kept.reason
    assert found["wanted"] == [key]
    lines = cared.run(capsys, "ls").out.splitlines()
    when = found["quarantined"][0]["when"]
    assert f"quarantined {when}: {path}: {kept.reason}".rstrip() in [line.rstrip() for line in lines]
    assert f"wanted: {key}" in lines
    cared.bottom.put(path, data)  # by a publish, which knows of no list
    assert listed()[1]["wanted"] == []


def test_machines_that_were_seen_are_listed_with_when(cared, listed):
    cared.publish(machines=())
    before_s = time.time()
    mark(cared.store, TPU)
    machines = listed()[1]["machines"]
    assert list(machines) == [TPU.digest]
    assert machines[TPU.digest]["device_kind"] == "TPU v5 [lite]"
    assert before_s <= machines[TPU.digest]["seen_s"] <= time.time()


def test_a_person_sees_a_line_for_each_target(cared, capsys):
    cared.publish(machines=(CPU, TPU))
    cared.publish("nowhere", machines=())
    cared.bottom.delete(cared.executables(TPU)[0])
    lines = cared.run(capsys, "ls").out.splitlines()
    cpu, tpu, nowhere = (
        next(line.split() for line in lines if word in line) for word in (CPU.digest, TPU.digest, "nowhere/1")
    )
    size_bytes = sum(cared.file(path).stat().st_size for path in cared.executables(CPU))
    assert cpu == [
        *("toy/1", "stable", "100", "B", "cpu", "·", "jaxlib", "0.12.0", CPU.digest),
        *("2", "·", *shown_bytes(size_bytes).split(), "0"),
    ]
    assert tpu[4:10] == ["TPU", "v5", "[lite]", "·", "jaxlib", "0.12.0"]
    assert tpu[-1] == "1"
    assert nowhere[4:] == ["published", "for", "no", "machine"]


def test_a_document_that_cannot_be_read_is_told_by_the_exit_status_and_the_rest_is_listed(cared, capsys, listed):
    cared.publish("other")
    cared.publish()
    cared.bottom.put("models/toy/1/manifest.json", b"{")
    status, found = listed()
    assert status == 1
    assert list(found["problems"]) == ["models/toy/1/manifest.json"]
    assert [one["model"] for one in found["versions"]] == ["other"]
    outcome = cared.run(capsys, "ls")
    assert outcome.status == 1
    assert "cannot be read: models/toy/1/manifest.json: " in outcome.out


def test_what_a_terminal_would_act_on_is_shown_and_not_done(cared, capsys):
    """Whoever can write to the store could else rewrite what is on the screen, or add lines to it."""
    cared.publish()
    kept = {
        "path": "executables/a",
        "key": "a",
        "reason": "\x9b1m\x1b[2J\nwanted: \u202ek",
        "when": "2026-01-02T03:04:05+00:00",
        "kept_at": "quarantine/q/a",
    }
    cared.bottom.put("quarantine/q/reason.json", json.dumps(kept).encode())
    outcome = cared.run(capsys, "ls")
    lines = [line for line in outcome.out.splitlines() if line.startswith("quarantined ")]
    assert [line.partition(": executables/a: ")[2] for line in lines] == ["\\x9b1m\\x1b[2J\\nwanted: \\u202ek"]


def test_it_changes_nothing(cared, capsys):
    cared.publish()
    before = cared.content()
    cared.run(capsys, "ls")
    assert cared.content() == before
