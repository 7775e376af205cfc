"""The images, built and run for real: what they hold, as whom they run, and an answer through both from a bucket.

Everything runs in podman as it would elsewhere, with a root file system that cannot be written, without rights, as a
user that no file belongs to. The bucket is a server of GCS's protocol, filled by the publisher's image.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.gameday.fault_proxy import FaultProxy
from cache.signing import Signer
from examples.loopback import get_or_post
from infra.images import podman
from tests.cache.gcs_server import GcsServer
from tests.instance_process import InstanceProcess, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.slow

EXAMPLES_LOCK = "examples/requirements-function.lock"  # with which `make image` builds functions
# Of this run alone, so that nobody's earlier layers have the labels of it.
TOLD = {"SOURCE": "an origin", "REVISION": uuid4().hex}
NOBODY = 65532
FUNCTION_BYTES_MAX = 120_000_000
OVER_DEPENDENCIES_MAX = 1.15
# By what executables are known, and what auditwheel patched, which strip may break: as their wheels have them.
KEPT_WHOLE = {"jax", "jaxlib", "numpy", "scipy", "PIL", "sklearn"}
WAIT_S_MAX = 120.0
KEYS, MODELS = "/keys", "/models"
PROJECT = tomllib.loads((podman.ROOT / "pyproject.toml").read_text())["project"]
STORE = "gs://bucket/store"
OURS = f"--label=test={os.getpid()}"  # by which containers that a failure left are found
PYTHON = "--entrypoint=/opt/warmpool/bin/python"
LOOK = Path(__file__).with_name("look_into_image.py").read_text()
MODEL = """
from dataclasses import replace

from examples.options.model import CONTRACT, price
from warmpool.model import Dim, Model, Tolerance

few = Dim("batch", max=4, sizes=(1, 4), batch=True)
model = Model(
    name="options",
    methods={"price": price},
    inputs={name: replace(tensor, dims=(few,)) for name, tensor in CONTRACT.items()},
    tolerance=Tolerance(rtol=1e-4, atol=1e-4),
)
"""
CONTRACT = {"spot": 100, "strike": 105, "rate": 0.03, "volatility": 0.2, "maturity": 0.5}
# What of the fingerprint does not come from a client of XLA.
KIND = """
import json
from cache import fingerprint
made = fingerprint.fingerprint_of(platform_name="cpu", platform_version="", device_kind="cpu", device_count=1)
print(json.dumps(dict(made.ingredients)))
"""


class Images(dict[str, str]):
    """The name of every image, which is built when it is asked for first."""

    def __missing__(self, target: str) -> str:
        started_s = time.monotonic()
        try:
            podman.make_base()
            lock = {"REQUIREMENTS": EXAMPLES_LOCK} if target == "function" else {}
            self[target] = podman.build(target, **TOLD, **lock)
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{error}: {error.stderr[-4000:]}")
        sys.stdout.write(f"{target} built in {time.monotonic() - started_s:.0f} s\n")
        return self[target]


class Seen(dict[str, dict[str, Any]]):
    """What is found in a container of each image."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __missing__(self, target: str) -> dict[str, Any]:
        self[target] = json.loads(ran(self.images[target], "-I", "-c", LOOK, options=(PYTHON,)))
        return self[target]


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """The images; no container is left at the end."""
    if lacking := podman.missing():
        reason = f"images are built by root, with podman, buildah, runc and mmdebstrap; lacking: {', '.join(lacking)}"
        (pytest.fail if os.environ.get("WARMPOOL_CI") else pytest.skip)(reason)
    yield Images()
    if left := podman.run("podman", "ps", "--all", "--quiet", f"--filter={OURS.removeprefix('--')}").split():
        podman.run("podman", "rm", "--force", *left)


def ran(
    name: str,
    *arguments: str,
    options: tuple[str, ...] = (),
    mounts: Mapping[Path, str] | None = None,
    **variables: str,
) -> str:
    """A container to its end; what it wrote."""
    command = podman.run_command(name, *arguments, options=(OURS, *options), variables=variables, mounts=mounts or {})
    done = subprocess.run(
        command,
        check=False,
        env=podman.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen(images) -> Seen:
    return Seen(images)


@dataclass(frozen=True)
class Bucket:
    """A store that the publisher's image filled, behind a proxy that counts; the keys' folder."""

    proxy: FaultProxy
    keys: Path


@pytest.fixture(scope="module")
def bucket(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    keys, models = folder / "keys", folder / "models"
    keys.mkdir()
    models.mkdir()
    Signer.generate().write(keys / "publisher.pem")
    os.chown(keys / "publisher.pem", NOBODY, NOBODY)
    (models / "model.py").write_text(MODEL)
    folder.chmod(0o755)
    with GcsServer() as server, FaultProxy(server) as proxy:
        server.client().create_bucket("bucket")
        publish = ("publish", f"{MODELS}/model.py", "--store", STORE, "--signing-key", f"{KEYS}/publisher.pem")
        ran(images["publisher"], *publish, mounts={keys: KEYS, models: MODELS}, STORAGE_EMULATOR_HOST=server.url)
        yield Bucket(proxy, keys)


class InstanceContainer(InstanceProcess):
    """An instance in a container, on a bucket."""

    def __init__(self, name: str, bucket: Bucket, log: Path) -> None:
        variables = {
            "STORAGE_EMULATOR_HOST": bucket.proxy.url,
            "WARMPOOL_HOST": "127.0.0.1",
            "WARMPOOL_TRUSTED_KEYS": f"{KEYS}/publisher.pem.pub",
        }
        self.command = tuple(podman.run_command(name, options=[OURS], variables=variables, mounts={bucket.keys: KEYS}))
        super().__init__(STORE, log, "--trusted-keys", f"{KEYS}/publisher.pem.pub", **podman.environment())

    def status(self) -> dict[str, Any]:
        """The status document; the processes that it names have other numbers here."""
        document: dict[str, Any] = self.get("/v1/status").json()
        return document


@contextlib.contextmanager
def function(name: str, pool_port: int, log: Path):
    """The URL of a function in a container, before an instance; ended in order."""
    port = free_port()
    variables = {"PORT": str(port), "HOST": "127.0.0.1", "WARMPOOL_URLS": f"http://127.0.0.1:{pool_port}"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            podman.run_command(name, options=[OURS], variables=variables, mounts={}), env=podman.environment(),
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(WAIT_S_MAX) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def call_price(spot: float, strike: float, rate: float, volatility: float, maturity: float) -> float:
    """Black and Scholes, in double precision."""
    deviation = volatility * math.sqrt(maturity)
    d1 = (math.log(spot / strike) + rate * maturity) / deviation + deviation / 2
    cdf = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    return spot * cdf(d1) - strike * math.exp(-rate * maturity) * cdf(d1 - deviation)


def pins(lock: str) -> tuple[dict[str, str], set[str]]:
    """The versions that a lock file names, and the packages that only other systems need."""
    lines = re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)([^\\\n]*)", (podman.ROOT / lock).read_text(), re.MULTILINE)
    return {name: version for name, version, _ in lines}, {name for name, _, marker in lines if ";" in marker}


LOCKS = {
    "function": EXAMPLES_LOCK,
    "instance": "infra/images/requirements-instance-cpu.lock",
    "publisher": "infra/images/requirements-publisher.lock",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("target", sorted(LOCKS))
def test_it_runs_as_nobody_without_rights_and_writes_only_to_tmp(seen, target):
    assert seen[target]["user"] == [NOBODY, NOBODY]
    assert seen[target]["rights"] == ["0" * 16]
    assert seen[target]["writable"] == ["/tmp"]
    assert seen[target]["privileged"] == []
    assert seen[target]["programs"] == []


@pytest.mark.parametrize("target", sorted(LOCKS))
def test_it_holds_what_its_lock_file_names_and_says_so_in_its_bill_of_materials(seen, target):
    locked, elsewhere = pins(LOCKS[target])
    found = {normal(name): version for name, version in seen[target]["packages"].items()}
    assert found.pop("xla-warmpool")
    assert found.items() <= locked.items()
    assert locked.keys() - found.keys() <= elsewhere
    told = {normal(name): version for name, version, purl in seen[target]["bill"] if not purl.startswith("pkg:deb/")}
    assert told.pop("xla-warmpool")
    assert told == found
    assert {"libc6", "libssl3t64", "python3.13"} <= {
        name for name, _, purl in seen[target]["bill"] if "pkg:deb/" in purl
    }


@pytest.mark.parametrize("target", sorted(LOCKS))
def test_all_of_python_works_and_its_bytecode_is_there(seen, target):
    assert seen[target]["not_importable"] == []
    assert seen[target]["certificates"] > 100
    assert seen[target]["without_bytecode"] == []
    # Few packages carry templates, which are no Python.
    assert seen[target]["sources_compiled"] >= 0.98 * seen[target]["sources"]


@pytest.mark.parametrize("target", sorted(LOCKS))
def test_packages_lack_only_tests_symbols_and_a_functions_weights(seen, target):
    """Of what is compared with RECORD, which tells what the wheels had."""
    left_out, changed = seen[target]["left_out"], seen[target]["changed"]
    assert seen[target]["tests"] == []
    weights = {path for path in left_out if "tests" not in Path(path).parts}
    assert {Path(path).suffix for path in weights} == ({".safetensors"} if target == "function" else set())
    assert {Path(path).suffix for path in changed} == {".so"}
    assert max(changed.values()) < 0
    assert not KEPT_WHOLE & {Path(path).parts[0] for path in changed}
    assert {"httptools", "msgspec"} <= {Path(path).parts[0] for path in changed}


def test_a_function_has_neither_jax_nor_numpy_and_an_instance_no_training(seen):
    assert not {"jax", "jaxlib", "numpy", "grpcio"} & seen["function"]["packages"].keys()
    assert not {"flax", "optax", "orbax-checkpoint"} & seen["instance"]["packages"].keys()


def test_every_function_of_the_examples_finds_what_it_needs(images):
    """Text becomes tokens without the weights and without the hub, which are not in the image."""
    script = (
        "import importlib, importlib.util\n"
        "digits, embed, options = (importlib.import_module(f'examples.{name}.function') for name in NAMES)\n"
        "assert importlib.util.find_spec('huggingface_hub') is None\n"
        "assert [file.suffix for file in embed.model_folder().iterdir() if file.suffix == '.safetensors'] == []\n"
        "print(*embed.tokenizer().encode('a cat').tokens[:4])\n"
    ).replace("NAMES", repr(("digits", "embed", "options")))
    assert ran(images["function"], "-c", script, options=(PYTHON,)).strip() == "[CLS] a cat [SEP]"


def test_images_are_no_larger_than_promised(images, seen):
    """Sizes of all files, not compressed, as the engine tells them; of packages those of their wheels, by RECORD."""
    sizes = {
        target: int(podman.run("podman", "image", "inspect", "--format={{.Size}}", images[target])) for target in LOCKS
    }
    packed = {target: seen[target]["dependencies_bytes"] for target in LOCKS}
    told = (f"{target} {sizes[target] / 1e6:.1f} MB, of packages {packed[target] / 1e6:.1f} MB" for target in LOCKS)
    sys.stdout.write(f"{'; '.join(told)}\n")
    assert sizes["function"] <= FUNCTION_BYTES_MAX
    assert sizes["instance"] <= OVER_DEPENDENCIES_MAX * packed["instance"]


@pytest.mark.parametrize("target", sorted(LOCKS))
def test_labels_and_the_bill_of_materials_say_what_it_is_and_what_it_was_built_from(images, seen, target):
    labels = json.loads(podman.run("podman", "image", "inspect", "--format={{json .Labels}}", images[target]))
    told = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    named = {"title": f"warmpool {target}", "licenses": "Apache-2.0", "version": PROJECT["version"]}
    made_of = {"source": TOLD["SOURCE"], "revision": TOLD["REVISION"], "base.name": podman.BASE}
    assert (named | made_of).items() <= told.items()
    about = seen[target]["image"]
    assert (about["name"], about["version"]) == (named["title"], named["version"])
    properties = {one["name"]: one["value"] for one in about["properties"]}
    assert properties == {f"warmpool:{name}": value for name, value in (TOLD | {"BASE": podman.BASE}).items()}


def price_of(url: str) -> Any:
    """What a function answers; None while it does not."""
    try:
        with get_or_post(url, json.dumps({"contracts": [CONTRACT]}).encode(), timeout_s=WAIT_S_MAX) as response:
            return json.loads(response.read())
    except OSError:
        return None


def test_what_the_publisher_compiled_is_what_an_instance_loads_and_the_function_answers(images, bucket, tmp_path):
    right = pytest.approx(call_price(**CONTRACT), rel=1e-4)
    with (
        InstanceContainer(images["instance"], bucket, tmp_path / "instance.log") as instance,
        function(images["function"], instance.port, tmp_path / "function.log") as url,
    ):
        first = wait_until(lambda: price_of(url), WAIT_S_MAX)
        sys.stdout.write(f"{time.monotonic() - instance.started_s:.2f} s from both containers' start to an answer\n")
        assert first["results"][0]["price"] == right
        instance.wait_warm()
        lanes = instance.status()["lanes"]
        assert all(lane["warm"] == lane["planned"] > 0 for lane in lanes), lanes
        assert all(lane["cold"] == lane["missing"] == {} for lane in lanes), lanes
        second = wait_until(lambda: price_of(url), WAIT_S_MAX)
        assert second["results"][0]["price"] == right
        assert second["served"]["step"] == "exact", second
        planned = max(lane["planned"] for lane in lanes)
        fetched = {one.path for one in bucket.proxy.seen if "/download/" in one.path and "executables" in one.path}
        assert len(fetched) >= planned, "they come out of the bucket"


def test_a_store_that_this_machine_filled_fits_if_its_python_is_the_images(images):
    """jaxlib's binary belongs to a version of Python, and all else that decides is the machine's and the lock's."""
    inside = json.loads(ran(images["instance"], "-I", "-c", KIND, options=(PYTHON,)))
    here = json.loads(subprocess.run([sys.executable, "-c", KIND], capture_output=True, check=True).stdout)
    differing = {name for name in inside.keys() | here.keys() if inside.get(name) != here.get(name)}
    assert differing == (set() if sys.version_info[:2] == (3, 13) else {"jaxlib_binary"})
