from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.children import RunFailed
from infra.stack.metrics import configuration, find_program, page_packages

STAND_IN = """#!/bin/sh
echo "$@" >> "$0.said"
case "$1" in
  depends) printf 'prometheus\n  Depends: libjs-z\nlibc6\nlibjs-d3\nfonts-x\n' ;;
  --extract) mkdir -p "$3/usr/bin"; echo "$2" >> "$3/usr/bin/prometheus" ;;
  --option) shift 3; for name; do : > "${name}_1.deb"; done ;;
esac
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own, with the shell's tools and what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mkdir"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def test_what_is_on_the_path_is_taken(path: Path, tmp_path: Path) -> None:
    put(path, "prometheus", STAND_IN)
    assert find_program(tmp_path / "tools") == path / "prometheus"
    assert not (tmp_path / "tools").exists()


def test_where_there_is_no_apt_that_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no prometheus on the PATH, and no apt-get to get it"):
        find_program(tmp_path / "tools")


def test_a_download_is_unpacked_once_with_what_its_pages_need(path: Path, tmp_path: Path) -> None:
    for name in ("apt-get", "apt-cache", "dpkg-deb"):
        put(path, name, STAND_IN)
    tools = tmp_path / "other" / "tools"
    for _ in range(2):
        assert find_program(tools) == tools / "usr" / "bin" / "prometheus"
    unpacked = [Path(line).name for line in (tools / "usr" / "bin" / "prometheus").read_text().splitlines()]
    assert unpacked == ["fonts-x_1.deb", "libjs-d3_1.deb", "prometheus_1.deb"]
    assert len((path / "apt-get.said").read_text().splitlines()) == 1
    assert sorted(entry.name for entry in tools.parent.iterdir()) == ["tools", "tools.lock"]


def test_a_download_that_fails_is_tried_after_an_update_and_told_with_its_last_line(path: Path, tmp_path: Path) -> None:
    failing = 'echo "$1" >> "$0.said"; echo "W: hint" >&2; echo "E: none to be had" >&2; exit 100'
    put(path, "apt-get", f"#!/bin/sh\n{failing}")
    for name in ("apt-cache", "dpkg-deb"):
        put(path, name, STAND_IN)
    with pytest.raises(RunFailed, match="apt-get update failed: E: none to be had"):
        find_program(tmp_path / "tools")
    assert (path / "apt-get.said").read_text().split() == ["--option", "update"]
    assert not (tmp_path / "tools").exists()


def test_packages_for_pages_are_told_from_the_others() -> None:
    depends = ["prometheus", "  Depends: libjs-no", "libjs-d3", " |Depends: fonts-no", "fonts-glyphicons-halflings"]
    assert page_packages("\n".join([*depends, "not-libjs-x", ""])) == ["libjs-d3", "fonts-glyphicons-halflings"]


def test_both_instances_are_scraped_by_their_names() -> None:
    document = json.loads(configuration([("instance-1", "127.0.0.1:1"), ("instance-2", "127.0.0.1:2")]))
    (job,) = document["scrape_configs"]
    assert [(one["labels"]["instance"], one["targets"]) for one in job["static_configs"]] == [
        ("instance-1", ["127.0.0.1:1"]),
        ("instance-2", ["127.0.0.1:2"]),
    ]
