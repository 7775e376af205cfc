"""`warmpool cache fill`: what published versions lack on this kind of machine is made out of the store alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np
import pytest

from cache.artifact import unpack
from cache.executable import Runtime
from cache.failures import Failure
from cache.local_store import LocalStore
from cache.opening import open_store
from cache.quarantine import quarantine
from cache.settings import StoreSettings
from cache.signing import ANYONE
from cache.wanted import want, wanted
from tests.instance_process import InstanceProcess, inferred
from tests.warmpool.publishing.toy import Heard, Toy
from warmpool import cli, wire
from warmpool.manifest import Target, executable_path, program_path, target_path, weights_path
from warmpool.publishing.publish import Options, publish
from warmpool.survey import survey

SIZES = (1, 2)
OTHER_FLAGS = "--xla_cpu_enable_fast_math=false"
REFUSING = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=2, sizes=(2,), batch=True)
seq = Dim("seq", max=4, sizes=(2, 4))

def predict(params, x):
    return jnp.stack([x[:, index] * index for index in range(x.shape[1])], axis=1)

model = Model(name="toy", methods={"predict": predict}, inputs={"x": Tensor("float32", (batch, seq))})
"""


class Outcome(NamedTuple):
    """What the command exited with and printed."""

    status: int
    out: str
    err: str

    @property
    def filled(self) -> dict[str, dict[str, Any]]:
        """What was done, by version."""
        return {f"{one['model']}/{one['version']}": one for one in json.loads(self.out)["filled"]}


class Filled:
    """A store with published versions, whose authors' files are gone."""

    def __init__(self, toy: Toy, capsys: Any) -> None:
        self.toy = toy
        self.bottom = LocalStore(toy.store)
        self.store = open_store(toy.settings)
        self._capsys = capsys
        assert not list(toy.folder.rglob("*.py"))

    def run(self, *arguments: str, settings: StoreSettings | None = None) -> Outcome:
        settings = settings or self.toy.settings
        flags = ["--store", settings.store]
        if settings.signing_key:
            flags += ["--signing-key", settings.signing_key]
        if settings.trusted_keys:
            flags += ["--trusted-keys", settings.trusted_keys]
        self._capsys.readouterr()
        status = cli.main(["cache", "fill", *flags, *arguments])
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    def version(self, name: str = "toy/1"):
        (found,) = (version for version in survey(self.store).versions if version.name == name)
        return found

    def target(self, name: str = "toy/1") -> Target:
        (target,) = self.version(name).targets.values()
        return target

    def target_path(self, name: str = "toy/1") -> str:
        found = self.version(name)
        (digest,) = found.targets
        return target_path(found.manifest.model, found.manifest.version, digest)

    def keys(self, name: str = "toy/1") -> list[str]:
        return [spec.key for spec in self.target(name).executables]

    def content(self) -> dict[str, bytes]:
        return {entry.path: self.bottom.get(entry.path) for entry in self.bottom.entries("")}

    def answers(self, path: str, batch: int) -> list[float]:
        """What a stored executable gives."""
        _, payload = unpack(self.bottom.get(path), key=path.rpartition("/")[2], kind="executable", trust=ANYONE)
        runtime = Runtime.open("jax")
        x = np.random.default_rng(3).normal(size=(batch, 4)).astype(np.float32)
        (result,) = runtime.load(payload).run([runtime.put(np.array(2.5, np.float32)), runtime.put(x)])
        np.testing.assert_allclose(result, x.sum(axis=1) * np.float32(2.5), rtol=1e-5)
        return [float(value) for value in result]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """toy 1 and 2, and other 1, which is the second model; no test changes it."""
    toy = Toy(tmp_path_factory.mktemp("published"))
    toy.publish("1", sizes=SIZES)
    toy.publish("2", sizes=SIZES, factor=3.0)
    toy.publish("1", sizes=(4,), name="other")
    shutil.rmtree(toy.folder / "author")
    return toy.folder


@pytest.fixture
def filled(published, tmp_path, capsys):
    """A copy that a test may change."""
    folder = Path(shutil.copytree(published, tmp_path / "copy"))
    return Filled(Toy(folder), capsys)


def test_a_store_that_lacks_nothing_is_left_as_it_is(filled):
    before = filled.content()
    outcome = filled.run("--json")
    assert outcome.status == 0
    assert {name: (one["executables"], one["compiled"], one["problem"]) for name, one in outcome.filled.items()} == {
        "toy/2": (4, 0, ""),
        "other/1": (2, 0, ""),
    }
    result = json.loads(outcome.out)
    assert (result["wanted"], result["problems"]) == ([], {})
    assert result["seconds"] > 0
    assert filled.content() == before


def test_an_executable_that_was_set_aside_is_made_again_and_answers_as_before(filled):
    path = executable_path(filled.keys("toy/2")[2])
    key = path.removeprefix("executables/")
    before, answers = filled.content(), filled.answers(path, batch=2)
    references = filled.target("toy/2").references
    assert references
    assert quarantine(filled.bottom, path, "damaged") is not None
    want(filled.store, key, "damaged")
    outcome = filled.run("--json")
    assert outcome.status == 0
    assert outcome.filled["toy/2"] | {"fingerprint": ""} == {
        "model": "toy",
        "version": "2",
        "platform": "cpu",
        "fingerprint": "",
        "executables": 4,
        "compiled": 1,
        "problem": "",
    }
    assert json.loads(outcome.out)["wanted"] == wanted(filled.store) == []
    assert filled.answers(path, batch=2) == answers
    assert filled.store.get(path)  # signed by the key that was given
    after = filled.content()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    kept = {name for name in changed if not name.startswith(("quarantine/", "answers/"))}
    assert kept <= {path, filled.target_path("toy/2")}
    assert filled.target("toy/2").references == references


def test_a_target_that_cannot_be_read_is_made_anew_and_compiles_nothing(filled):
    path = filled.target_path("toy/2")
    target = filled.target("toy/2")
    filled.bottom.put(path, b"{")
    outcome = filled.run("--json", "toy")
    assert (outcome.status, outcome.filled["toy/2"]["compiled"]) == (0, 0)
    again = filled.target("toy/2")
    assert [spec.key for spec in again.executables] == [spec.key for spec in target.executables]
    assert again.references == target.references


@pytest.mark.parametrize("model", ["toy", "other"])
def test_a_program_in_one_piece_is_all_it_takes(filled, model):
    """Every executable is gone, and every target."""
    name = {"toy": "toy/2", "other": "other/1"}[model]
    path, keys = filled.target_path(name), filled.keys(name)
    for entry in list(filled.bottom.entries("executables")):
        filled.bottom.delete(entry.path)
    filled.bottom.delete(path)
    outcome = filled.run("--json", model)
    assert (outcome.status, outcome.filled[name]["compiled"]) == (0, len(keys))
    assert filled.keys(name) == keys
    assert all(filled.bottom.get(executable_path(key)) for key in (*keys, *filled.target(name).references))


# Which versions


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ((), {"toy/2", "other/1"}),
        (("toy",), {"toy/2"}),
        (("toy@1",), {"toy/1"}),
        (("other@1", "toy@1"), {"other/1", "toy/1"}),
        (("toy", "toy@1"), {"toy/1", "toy/2"}),
    ],
)
def test_stable_versions_are_filled_or_those_that_are_named(filled, named, chosen):
    outcome = filled.run("--json", *named)
    assert (outcome.status, set(outcome.filled)) == (0, chosen)


def test_without_a_key_that_signs_nothing_is_begun(filled, monkeypatch):
    """It would be refused at the end, after minutes of compiling."""
    monkeypatch.setattr("warmpool.cache_commands.fill.Children", None)  # no child is started
    settings = StoreSettings(store=str(filled.toy.store), trusted_keys=str(filled.toy.folder / "key.pub"))
    outcome = filled.run(settings=settings)
    assert (outcome.status, outcome.out) == (1, "")
    said = "what is to be made is not trusted: it cannot be stored unsigned: give a signing key"
    assert outcome.err == f"warmpool cache: fill: {said}\n"


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ("nothing", "other@1, toy@1, toy@2"),
        ("toy@3", "toy@1, toy@2"),
        ("@1", "other@1, toy@1, toy@2"),
        ("toy@1@2", "toy@1, toy@2"),
    ],
)
def test_a_version_that_is_not_published_is_told_with_those_that_are(filled, named, there):
    outcome = filled.run("toy", named)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == f"warmpool cache: fill: {named!r} is not published; there is {there}\n"


def test_a_person_reads_a_line_for_each_version(filled):
    filled.bottom.delete(executable_path(filled.keys("toy/2")[0]))
    outcome = filled.run()
    (digest,) = filled.version("toy/2").targets
    assert (outcome.status, sorted(outcome.out.splitlines())) == (
        0,
        [
            f"other/1 for cpu ({digest}): 2 executables, 0 of them compiled now",
            f"toy/2 for cpu ({digest}): 4 executables, 1 of them compiled now",
        ],
    )
    assert "compiled predict batch=1,seq=4" in outcome.err


# What cannot be filled


def test_a_method_that_refused_symbolic_dimensions_is_a_clear_problem(tmp_path, capsys):
    toy = Toy(tmp_path)
    file = toy.model_file()
    file.write_text(REFUSING)
    publish(Options(model_file=file, store=toy.settings), Heard())
    shutil.rmtree(file.parent)
    filled = Filled(toy, capsys)
    (version,) = survey(filled.store).versions
    path = executable_path(filled.keys(version.name)[0])
    filled.bottom.delete(path)
    outcome = filled.run("--json")
    assert outcome.status == 1
    assert outcome.filled[version.name]["problem"] == (
        "model 'toy', method 'predict' was exported once a bucket, which is not enough to prove it here: publish the "
        "model from its file on this machine"
    )
    with pytest.raises(KeyError):
        filled.content()[path]


def damaged_weights(filled):
    path = weights_path(filled.version("toy/2").manifest.weights.digest)
    filled.bottom.put(path, bytes(len(filled.bottom.get(path))))
    return "weights "


def missing_weights(filled):
    path = weights_path(filled.version("toy/2").manifest.weights.digest)
    filled.bottom.delete(path)
    return f"nothing is stored under {path!r}"


def damaged_program(filled):
    path = program_path(filled.version("toy/2").manifest.methods["predict"].programs["*"])
    filled.bottom.put(path, filled.bottom.get(path)[:-1])
    return f"{path!r} is damaged: it is "


@pytest.mark.parametrize("damage", [damaged_weights, missing_weights, damaged_program])
def test_what_it_would_be_made_of_has_to_be_sound_and_nothing_is_stored_otherwise(filled, damage):
    filled.bottom.delete(executable_path(filled.keys("toy/2")[0]))
    problem = damage(filled)
    before = filled.content()
    outcome = filled.run("--json", "toy")
    assert outcome.status == 1
    assert outcome.filled["toy/2"]["problem"].startswith(problem)
    assert filled.content() == before


def test_what_failed_to_compile_before_is_not_tried_unless_asked_to_and_keeps_no_other_from_being_filled(filled):
    failing, other = filled.keys("other/1")[0], filled.keys("toy/2")[1]
    for key in (failing, other):
        filled.bottom.delete(executable_path(key))
    failure = Failure.now(key=failing, what="model 'other'", reason="it crashed", fingerprint="")
    filled.bottom.put(f"failures/{failing}", msgspec.json.encode(failure))
    outcome = filled.run("--json")
    assert outcome.status == 1
    assert list(outcome.filled) == ["other/1", "toy/2"]
    assert "failed to compile before" in outcome.filled["other/1"]["problem"]
    assert (outcome.filled["toy/2"]["problem"], outcome.filled["toy/2"]["compiled"]) == ("", 1)
    outcome = filled.run("--json", "--retry-failed")
    assert (outcome.status, outcome.filled["other/1"]["compiled"]) == (0, 1)


def test_a_version_that_cannot_be_read_is_told_and_the_others_are_filled(filled):
    filled.bottom.put("models/other/1/manifest.json", b"{")
    filled.bottom.delete(executable_path(filled.keys("toy/2")[0]))
    outcome = filled.run("--json")
    assert outcome.status == 1
    assert list(json.loads(outcome.out)["problems"]) == ["models/other/1/manifest.json"]
    assert outcome.filled["toy/2"]["compiled"] == 1
    assert "cannot be read: models/other/1/manifest.json: " in filled.run().out


def test_a_platform_that_is_not_there_is_told_in_one_line(filled):
    if os.path.exists("/dev/accel0"):  # noqa: PTH110
        pytest.skip("it may be there")
    outcome = filled.run("--platform", "tpu")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith("warmpool cache: --platform tpu: jax finds 'c")


# Another kind of machine


def test_for_another_kind_of_machine_everything_is_compiled_and_an_instance_there_serves(filled, tmp_path, monkeypatch):
    """The same processor with other flags of XLA: none of its executables may be used by the other, nor are they."""
    before = filled.content()
    jax.devices()  # this process keeps the flags that it has
    with monkeypatch.context() as environment:
        environment.setenv("XLA_FLAGS", OTHER_FLAGS)
        outcome = filled.run("--json")
    assert outcome.status == 0, outcome.err
    assert {name: (one["executables"], one["compiled"]) for name, one in outcome.filled.items()} == {
        "toy/2": (4, 4),
        "other/1": (2, 2),
    }
    found = filled.version("toy/2")
    (own,) = {target_path("toy", "2", digest) for digest in found.targets} & before.keys()
    digest = outcome.filled["toy/2"]["fingerprint"]
    other = found.targets[digest]
    assert other.fingerprint["xla_flags"] == OTHER_FLAGS
    assert other.references
    assert not {spec.key for spec in other.executables} & set(map(os.path.basename, before))
    assert {path: data for path, data in filled.content().items() if path in before} == before
    assert filled.content()[own] == before[own]
    trust = ("--trusted-keys", str(filled.toy.folder / "key.pub"))
    for environment in ({"XLA_FLAGS": OTHER_FLAGS}, {}):
        with InstanceProcess(filled.toy.store, tmp_path / "log", *trust, **environment) as instance:
            instance.wait_ready()
            x = np.arange(8, dtype=np.float32).reshape(2, 4)
            given = {"x": wire.Tensor("FP32", (2, 4), x.tobytes())}
            reply = instance.infer_reply("toy", given)
            assert reply.status == 200, reply.body
            assert inferred(reply).outputs["output"].tolist() == [18.0, 66.0]
            assert [lane["compiles"] for lane in instance.status()["lanes"][:1]] == [0]
            assert instance.status()["models"]["toy"]["version"] == "2"
