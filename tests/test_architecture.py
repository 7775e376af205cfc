"""ARCHITECTURE.md and the import contracts know every file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
PACKAGES = ("cache_commands", "compiling", "fitting", "publishing", "rollout", "rollout_commands", "scheduling")
INFRA = ("infra/deploy", "infra/images", "infra/stack")
FOLDERS = ("cache", "functions", "warmpool", *INFRA, *(f"warmpool/{package}" for package in PACKAGES))


def files(folder: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.py")} - {f"{folder}/__init__.py"}


def mapped() -> list[str]:
    """The files that the map names: the first of a row with its folder, the others and `...` in the same one."""
    found: list[str] = []
    folder = ""
    for row in re.findall(r"^\| (`.*?) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE):
        for name in re.findall(r"`([^`]+\.py)`", row):
            parent, _, file = name.rpartition("/")
            folder = parent if parent not in {"", "..."} else folder
            found.append(f"{folder}/{file}")
    return found


def test_the_map_has_every_file_once_and_no_other() -> None:
    assert sorted(mapped()) == sorted(set[str]().union(*map(files, FOLDERS)))


@pytest.mark.parametrize(
    ("contract", "apart"), [("front-light", {"cli", "lane"}), ("front-publishing", {"cli", "inputs", "model"})]
)
def test_a_contract_of_the_front_holds_all_of_it(contract: str, apart: set[str]) -> None:
    named = {name.removeprefix("warmpool.") for name in CONTRACTS[contract]["source_modules"]}
    assert (
        named - {"publishing.buckets", "publishing.missing", "scheduling"}
        == {Path(file).stem for file in files("warmpool")} - apart
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_package_has_layers_that_name_all_its_files(folder: str) -> None:
    (contract,) = (one for one in CONTRACTS.values() if one.get("containers") == [folder.replace("/", ".")])
    assert contract["exhaustive"]
    assert not any(":" in layer for layer in contract["layers"]), "files that import one another are no layers"
