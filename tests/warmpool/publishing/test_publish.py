"""Publishing: complete or invisible, nothing twice, and every refusal says whose fault it is.

Every publish here is real: it exports, compiles in children, proves and stores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest

from cache.artifact import unpack
from cache.executable import Runtime
from cache.settings import StoreSettings
from cache.signing import ANYONE
from tests.warmpool.command import in_process
from tests.warmpool.publishing.held_workers import HeldWorkers
from warmpool.errors import DeclarationError, ProofFailed, PublishError
from warmpool.manifest import Manifest, Serving, Target, executable_path, manifest_path, program_path, serving_path
from warmpool.manifest import weights_path as stored_weights
from warmpool.publishing.machines import Limits
from warmpool.publishing.program import read_program
from warmpool.publishing.publish import Options, Summary, publish

REPOSITORY = Path(__file__).parents[2]
WAIT_S_MAX = 600.0

TOY = """
import jax
import jax.numpy as jnp
import numpy as np
from warmpool.model import Dim, Method, Model, Tensor

batch = Dim("batch", max=8, sizes=(1, 2), batch=True)
seq = Dim("seq", max=8, sizes=(4, 8))

def predict(params, x, mask):
    valid = jnp.where(mask[:, :, None] == 1, x, 0.0)
    return jnp.tanh(valid.sum(axis=1) @ params["kernel"])

def length(params, x, mask):
    return mask.sum(axis=1)

mask = Tensor("int32", (batch, seq), pad=0, low=0, high=1)
model = Model(
    name="toy",
    methods={{"predict": predict, "length": length}},
    params={{"kernel": np.full((3, 2), {weight}, np.float32)}},
    inputs={{"x": Tensor("float32", (batch, seq, 3)), "mask": mask}},
)
"""

SMALL = TOY.replace('"seq", max=8, sizes=(4, 8)', '"seq", max=4, sizes=(4,)').replace(', "length": length', "")

LEAKING = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

def predict(params, x):
    return x.mean(axis=1)

batch = Dim("batch", max=2, sizes=(1,), batch=True)
seq = Dim("seq", max=4, sizes=(4,))
model = Model(name="leaking", methods={"predict": predict}, inputs={"x": Tensor("float32", (batch, seq))})
"""

WEIGHTED = """
from warmpool.model import Dim, LengthMask, Model, Tensor

def predict(params, x, mask):
    return (x * mask).sum(axis=1)

batch = Dim("batch", max=2, sizes=(1,), batch=True)
seq = Dim("seq", max=4, sizes=(4,))
inputs = {{"x": Tensor("float32", (batch, seq), pad={pad}), "mask": LengthMask(seq)}}
model = Model(name="weighted", methods={{"predict": predict}}, inputs=inputs)
"""

REFUSING = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

def predict(params, x):
    return jnp.stack([x[:, index] * index for index in range(x.shape[1])], axis=1)

batch = Dim("batch", max=4, sizes=(2,), batch=True)
seq = Dim("seq", max=4, sizes=(2, 4))
model = Model(name="refusing", methods={"predict": predict}, inputs={"x": Tensor("float32", (batch, seq))})
"""

GATED = """
import jax.numpy as jnp
import numpy as np
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=4, sizes={sizes}, batch=True)
seq = Dim("seq", max=4, sizes=(4,))
declared = Tensor("float32", (batch, seq), pad={pad}, low=1.0, high=2.0)

def predict(params, x):
    return x[:, 0] + params["gate"] * {leak}

model = Model(
    name="gated",
    methods={{"predict": predict}},
    params={{"gate": np.array({gate}, np.float32)}},
    inputs={{"x": declared}},
)
"""

FICKLE = """
import itertools
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

traces = itertools.count()
batch = Dim("batch", max=2, sizes=(1,), batch=True)

def predict(params, x):
    return x * float(next(traces))

model = Model(name="fickle", methods={"predict": predict}, inputs={"x": Tensor("float32", (batch,))})
"""

SLOW = """
import jax.numpy as jnp
from warmpool.model import Dim, Model, Tensor

def predict(params, x):
    for step in range(400):
        x = jnp.sin(x @ (x.T + step)) @ x
    return x

model = Model(name="slow", methods={"predict": predict}, inputs={"x": Tensor("float32", (4, 4))})
"""


@dataclass
class Heard:
    """A progress that remembers."""

    said: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    expected: int = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def expect(self, steps: int) -> None:
        self.expected += steps

    def step(self, text: str) -> None:
        self.steps.append(text)


class Publisher:
    """Publishes files of one folder into one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.heard = Heard()

    def __call__(
        self, text: str = TOY, *, weight: str = "0.5", version: str | None = None, limits: Limits | None = None
    ) -> Summary:
        self.heard = Heard()
        path = self.written(text.format(weight=weight) if text in {TOY, SMALL} else text)
        options = Options(
            model_file=path,
            store=unsigned(self.store),
            version=version,
            limits=limits or Limits(),
        )
        return publish(options, self.heard)

    def written(self, text: str) -> Path:
        path = self.folder / "model.py"
        path.write_text(textwrap.dedent(text))
        return path

    def files(self) -> dict[str, int]:
        """Every object of the store and when it was written."""
        files = [path for path in self.store.rglob("*") if path.is_file() and not path.name.startswith(".")]
        return {path.relative_to(self.store).as_posix(): path.stat().st_mtime_ns for path in files}

    def manifest(self, summary: Summary) -> Manifest:
        path = self.store / manifest_path(summary.model, summary.version)
        return msgspec.json.decode(path.read_bytes(), type=Manifest)

    def target(self, summary: Summary) -> Target:
        (path,) = self.targets(summary.model, summary.version)
        return msgspec.json.decode(path.read_bytes(), type=Target)

    def targets(self, model: str, version: str = "*") -> list[Path]:
        """Files of targets, without what a process that was killed left unfinished beside them."""
        found = self.store.glob(f"models/{model}/{version}/targets/*")
        return [path for path in found if not path.name.startswith(".")]

    def served(self, model: str) -> str:
        return msgspec.json.decode((self.store / serving_path(model)).read_bytes(), type=Serving).stable


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Publisher, Summary]:
    publisher = Publisher(tmp_path_factory.mktemp("published"))
    return publisher, publisher()


@pytest.fixture(scope="module")
def published_small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    publisher = Publisher(tmp_path_factory.mktemp("small"))
    return publisher.store, publisher(SMALL)


@pytest.fixture
def small(published_small: tuple[Path, Summary], tmp_path: Path) -> tuple[Publisher, Summary]:
    """One method of two buckets, for two lanes, in a store that a test may change."""
    publisher = Publisher(tmp_path)
    shutil.copytree(published_small[0], publisher.store)
    return publisher, published_small[1]


@pytest.fixture
def empty(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


def test_a_publish_stores_all_that_an_instance_needs(published: tuple[Publisher, Summary]) -> None:
    publisher, summary = published
    manifest, target = publisher.manifest(summary), publisher.target(summary)
    listed = {one.key for one in target.executables}
    edges = {path for path in publisher.files() if path.startswith("executables/") and path[12:] not in listed}
    assert edges == set(map(executable_path, target.references))
    assert len(edges) == 6  # what new weights are compared with: at seq=1, and inside of each bucket, by each method
    wanted = {
        *(executable_path(one.key) for one in target.executables),
        *edges,
        *(path for path in publisher.files() if path.startswith("answers/")),  # of plain JAX
        *(program_path(digest) for method in manifest.methods.values() for digest in method.programs.values()),
        stored_weights(manifest.weights.digest),
        manifest_path("toy", summary.version),
        serving_path("toy"),
        f"models/toy/{summary.version}/targets/{summary.machines[0].fingerprint}.json",
    }
    assert set(publisher.files()) == wanted
    assert publisher.served("toy") == summary.version == manifest.version
    assert manifest.default_method == "predict"


def test_the_target_lists_every_bucket_in_load_order_with_its_cost(published: tuple[Publisher, Summary]) -> None:
    publisher, summary = published
    executables = publisher.target(summary).executables
    assert [(one.method, one.bucket["batch"], one.bucket["seq"]) for one in executables if one.minimum] == [
        ("predict", 1, 8),
        ("length", 1, 8),
    ] * 2
    assert [one.minimum for one in executables] == [True] * 4 + [False] * 8
    assert [one.ladder for one in executables] == [False] * 2 + [True] * 2 + [False] * 6 + [True] * 2
    assert [tuple(one.bucket.values()) for one in executables if one.ladder] == [(1, 8)] * 2 + [(2, 8)] * 2
    assert all(one.cpu_lane_only == one.ladder for one in executables)
    assert all(one.cost_us > 0 and one.size_bytes > 0 for one in executables)


def test_the_proofs_are_kept_with_their_figures(published: tuple[Publisher, Summary]) -> None:
    publisher, summary = published
    proofs = {(one.method, one.kind): one for one in publisher.target(summary).proofs}
    assert set(proofs) == {
        (method, kind) for method in ("predict", "length") for kind in ("platforms", "padding", "batching", "lanes")
    }
    assert all(one.cases > 0 and one.error_max <= 1e-5 for one in proofs.values())


def test_a_stored_executable_answers_as_plain_jax_does(published: tuple[Publisher, Summary]) -> None:
    publisher, summary = published
    spec = publisher.target(summary).executables[0]
    _, payload = unpack((publisher.store / executable_path(spec.key)).read_bytes(), key=spec.key, trust=ANYONE)
    runtime = Runtime.open("jax")
    x = np.random.default_rng(0).normal(size=(1, 8, 3)).astype(np.float32)
    kernel, mask = np.full((3, 2), 0.5, np.float32), np.ones((1, 8), np.int32)
    (found,) = runtime.load(payload).run([runtime.put(one) for one in (kernel, x, mask)])
    wanted = jax.jit(lambda kernel, x: jax.numpy.tanh(x.sum(axis=1) @ kernel))(kernel, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_publishing_the_same_twice_compiles_nothing_and_writes_nothing(published: tuple[Publisher, Summary]) -> None:
    publisher, first = published
    before = publisher.files()
    second = publisher()
    assert (second.version, second.compiled, second.reused, second.machines[0].proved) == (first.version, 0, 12, 0)
    assert publisher.heard.steps == []
    assert publisher.files() == before
    assert "nothing compiled, all 12 executables are in the store" in str(second)


def test_new_weights_compile_nothing_and_are_proved_with_what_is_stored(published: tuple[Publisher, Summary]) -> None:
    publisher, first = published
    second = publisher(weight="0.25")
    assert second.version != first.version
    assert (second.compiled, second.reused, second.machines[0].proved) == (0, 12, 12)
    assert not [step for step in publisher.heard.steps if step.startswith("compiled")]
    assert {(one.method, one.kind) for one in publisher.target(second).proofs} == {
        (method, kind) for method in ("predict", "length") for kind in ("padding", "batching", "lanes")
    }
    assert publisher.served("toy") == second.version
    assert publisher.manifest(first).version == first.version


@pytest.mark.parametrize(
    ("leak", "pad", "sizes", "cause"),
    [
        ("x.mean(axis=1)", "None", "(1,)", "the padding of input 'x' along dimension 'seq' reaches it"),
        ("x.mean(axis=1)", "1.0", "(1,)", "the padding of input 'x' along dimension 'seq' reaches it"),
        ("x[:, 0] / x.shape[1]", "None", "(1,)", "the padded size of dimension 'seq' itself reaches it"),
        ("x[:, 0] * x.shape[0]", "None", "(2,)", "the size of dimension 'batch' itself reaches it"),
        ("x[:, 0] * (jnp.asarray(x.shape[1]) == 2)", "None", "(1,)", "at seq=2 .* padded size of dimension 'seq'"),
    ],
)
def test_what_only_new_weights_let_through_is_refused_below_the_smallest_bucket_and_inside_it_too(
    empty: Publisher, leak: str, pad: str, sizes: str, cause: str
) -> None:
    first = empty(GATED.format(gate=0.0, leak=leak, pad=pad, sizes=sizes))
    with pytest.raises(ProofFailed, match=cause):
        empty(GATED.format(gate=1.0, leak=leak, pad=pad, sizes=sizes))
    assert not [step for step in empty.heard.steps if step.startswith("compiled")]
    assert empty.served("gated") == first.version


def test_an_environment_that_changes_compiles_gives_other_executables(
    empty: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {one.key for one in empty.target(empty(FICKLE.replace("float(next(traces))", "2"))).executables}
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    again = empty(FICKLE.replace("float(next(traces))", "2"), version="again")
    assert again.compiled == len(plain) == 2
    assert not plain & {one.key for one in empty.target(again).executables}


def test_damaged_files_are_made_anew(small: tuple[Publisher, Summary]) -> None:
    publisher, summary = small
    manifest = publisher.manifest(summary)
    key = publisher.target(summary).executables[3].key
    paths = [
        executable_path(key),
        program_path(manifest.methods["predict"].programs["*"]),
        stored_weights(manifest.weights.digest),
    ]
    whole = {path: (publisher.store / path).read_bytes() for path in paths}
    for path, data in whole.items():
        middle = len(data) // 2
        (publisher.store / path).unlink()
        (publisher.store / path).write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    again = publisher(SMALL)
    assert (again.compiled, again.machines[0].proved) == (1, 1)
    assert "is damaged: its digest does not match its content; it is compiled anew" in publisher.heard.said[0]
    unpack((publisher.store / paths[0]).read_bytes(), key=key, trust=ANYONE)
    read_program((publisher.store / paths[1]).read_bytes(), paths[1].removeprefix("programs/"))
    assert (publisher.store / paths[2]).read_bytes() == whole[paths[2]]


def test_a_named_version_never_changes(small: tuple[Publisher, Summary]) -> None:
    publisher, _ = small
    assert publisher(SMALL, version="v1").version == "v1"
    assert publisher(SMALL, version="v1").machines[0].proved == 0
    before = publisher.files()
    with pytest.raises(
        PublishError, match="version 'v1' of 'toy' is published with other weights; a version never changes"
    ):
        publisher(SMALL, weight="0.75", version="v1")
    with pytest.raises(PublishError, match="version 'v 1' is not allowed; use a name that matches"):
        publisher(SMALL, version="v 1")
    assert publisher.files() == before


def test_a_model_that_leaks_its_padding_is_refused_and_leaves_nothing_visible(empty: Publisher) -> None:
    with pytest.raises(ProofFailed) as caught:
        empty(LEAKING)
    assert str(caught.value).startswith(
        "model 'leaking', method 'predict': output 'output' at seq=1 in bucket batch=1,seq=4"
    )
    assert "the padding of input 'x' along dimension 'seq' reaches it; 'x' declares no pad" in str(caught.value)
    assert {path.split("/")[0] for path in empty.files()} == {"answers", "programs"}


def test_a_model_that_lets_nothing_but_nan_out_of_its_padding_is_refused(empty: Publisher) -> None:
    with pytest.raises(ProofFailed) as caught:
        empty(WEIGHTED.format(pad=None))
    leak = "NaN or infinity in the padding of input 'x' along dimension 'seq' reaches it; 'x' declares no pad"
    assert leak in str(caught.value)
    assert empty(WEIGHTED.format(pad=0.0)).compiled == 2


def test_a_program_that_is_not_what_its_function_computes_is_refused(empty: Publisher) -> None:
    with pytest.raises(ProofFailed) as caught:
        empty(FICKLE)
    assert str(caught.value).startswith(
        "model 'fickle', method 'predict': output 'output' at batch=1 of its exported program differs from the "
        "function's own under jax.jit by "
    )
    assert {path.split("/")[0] for path in empty.files()} == {"answers", "programs"}


def test_a_function_that_refuses_symbolic_dimensions_is_published_bucket_by_bucket(empty: Publisher) -> None:
    summary = empty(REFUSING)
    assert len(summary.notes) == 1
    assert (
        "refusing.predict: it refuses symbolic dimensions, so there are 2 programs instead of one" in summary.notes[0]
    )
    method = empty.manifest(summary).methods["predict"]
    assert set(method.programs) == {"batch=2,seq=4", "batch=2,seq=2"}
    assert method.outputs[0].shape == ("batch", "seq")
    assert {proof.kind: proof.cases for proof in empty.target(summary).proofs}["padding"] > 0


def test_weights_that_give_nothing_but_nan_are_refused(empty: Publisher) -> None:
    with pytest.raises(DeclarationError, match="weight 'kernel': 6 of its 6 values are NaN"):
        empty(weight="np.nan")
    with pytest.raises(ProofFailed, match=r"output 'output' at \* is NaN everywhere; look for NaN in the weights"):
        empty(
            "import jax.numpy as jnp\nfrom warmpool.model import Model, Tensor\n"
            "inputs = {'x': Tensor('float32', (3,), high=-1.0)}\n"
            "model = Model(name='log', methods={'predict': lambda params, x: jnp.log(x)}, inputs=inputs)\n"
        )
    assert not [path for path in empty.files() if path.startswith("models")]


def test_a_compile_that_takes_too_long_is_ended_and_named(empty: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HeldWorkers(empty.folder / "held", "compile_bucket").environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PublishError, match=r"method 'predict'.*: compiling failed: timeout: it ran longer than 2 s"):
        empty(limits=Limits(wall_s_max=2.0))


def test_a_compile_that_takes_too_much_memory_is_ended_and_named(empty: Publisher) -> None:
    with pytest.raises(PublishError, match=r"model 'slow', method 'predict'.* failed: (memory|crash): "):
        empty(SLOW, limits=Limits(memory_bytes_max=1 << 29))


def test_a_child_that_aborts_is_a_clear_error(empty: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_there_is_no_such_flag=1")
    with pytest.raises(PublishError, match=r"opening the jaxlib runtime failed: crash: .*Unknown flag in XLA_FLAGS"):
        empty()


def test_the_chosen_platform_has_to_be_there(empty: Publisher) -> None:
    options = Options(
        model_file=empty.written(LEAKING),
        store=unsigned(empty.store),
        platform="tpu",
    )
    if jax.default_backend() == "tpu":
        pytest.skip("it is there")
    with pytest.raises(PublishError, match=r"--platform tpu: jax finds 'c.*' here; publish on a machine that has it"):
        publish(options, empty.heard)


def command(publisher: Publisher, text: str, *more: str) -> list[str]:
    path = publisher.written(text.format(weight="0.5"))
    return ["publish", str(path), "--store", str(publisher.store), "--allow-unsigned", *more]


@pytest.mark.slow
def test_a_killed_publish_shows_nothing_and_goes_on_where_it_stopped(empty: Publisher) -> None:
    trials = HeldWorkers(empty.folder / "held", "trial")
    # What a killed process leaves there goes with the folder.
    environment = {**os.environ, **trials.environment, "TMPDIR": str(empty.folder)}
    log = empty.folder / "log"
    arguments = [sys.executable, "-m", "warmpool.cli", *command(empty, SMALL)]
    with (
        log.open("wb") as stream,
        subprocess.Popen(arguments, cwd=REPOSITORY, env=environment, stderr=stream) as child,
    ):
        try:
            deadline_s = time.monotonic() + WAIT_S_MAX
            while not empty.targets("toy"):  # where the first proof is kept at once
                assert child.poll() is None, log.read_text()
                assert time.monotonic() < deadline_s, log.read_text()
                trials.let_one()
                time.sleep(0.01)
        finally:
            child.kill()
    there = {path[12:] for path in empty.files() if path.startswith("executables/")}  # the references among them
    assert not {manifest for manifest in empty.files() if manifest.endswith(("manifest.json", "serving.json"))}
    summary = empty(SMALL)
    done = len(there & {one.key for one in empty.target(summary).executables})
    assert done >= 1
    assert 0 < summary.compiled == 4 - done
    assert summary.machines[0].proved <= 4 - done + 1
    assert empty.served("toy") == summary.version


def test_the_command_prints_a_summary_as_json(published: tuple[Publisher, Summary]) -> None:
    publisher, first = published
    done = in_process(*command(publisher, TOY, "--json"))
    assert done.returncode == 0, done
    summary = json.loads(done.stdout)
    assert (summary["version"], summary["compiled"], summary["reused"]) == (first.version, 0, 12)


def test_the_command_says_what_is_wrong_in_one_line(empty: Publisher) -> None:
    done = in_process(*command(empty, "model = None\n"))
    assert (done.returncode, done.stdout) == (1, "")
    unsigned_warning, *said = done.stderr.splitlines()
    assert unsigned_warning.startswith("UNSIGNED content of the store is accepted")
    assert said == ["warmpool publish: model.py: it must have exactly one Model at module level, but has 0 (none)"]


def unsigned(store: Path) -> StoreSettings:
    return StoreSettings(store=str(store), allow_unsigned=True)
