"""Prometheus for a stack: where the program comes from, and what it is to scrape.

Where there is none on the PATH, Debian's own package is downloaded through apt and unpacked, not installed: that needs
no root, and starts no service of the system that listens on every address.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples.children import RunFailed

DOWNLOAD_S_MAX = 300.0
SCRAPE_S = 1


def find_program(tools: Path) -> Path:
    """Prometheus: on the PATH, or unpacked in `tools`, where it is put if it is not there yet.

    Raises:
        RunFailed: It cannot be had; the message says why.
    """
    if found := shutil.which("prometheus"):
        return Path(found)
    program = tools / "usr" / "bin" / "prometheus"
    tools.parent.mkdir(parents=True, exist_ok=True)
    with tools.with_name(f"{tools.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _unpack(tools)
    return program


def configuration(instances: Sequence[tuple[str, str]]) -> str:
    """What Prometheus reads. JSON is YAML.

    Args:
        instances: Name and HOST:PORT of each.
    """
    targets = [{"targets": [address], "labels": {"instance": name}} for name, address in instances]
    scraping = {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"}
    document = {"global": scraping, "scrape_configs": [{"job_name": "warmpool", "static_configs": targets}]}
    return json.dumps(document, indent=1)


def page_packages(depends: str) -> list[str]:
    """The packages that Prometheus's pages need, of all that apt says it depends on: a line each, others indented."""
    return re.findall(r"^(?:libjs|fonts)-[a-z0-9.+-]+$", depends, re.MULTILINE)


def _unpack(tools: Path) -> None:
    missing = [name for name in ("apt-get", "apt-cache", "dpkg-deb") if not shutil.which(name)]
    if missing:
        raise RunFailed(f"there is no prometheus on the PATH, and no {missing[0]} to get it; install it")
    with tempfile.TemporaryDirectory(dir=tools.parent) as place:
        folder, root = Path(place, "archives"), Path(place, "root")
        folder.mkdir()
        try:
            _download(folder)
        except RunFailed:  # apt's own lists may be old, or not there
            _run(["apt-get", "update"])
            _download(folder)
        for archive in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(root)])
        shutil.rmtree(tools, ignore_errors=True)
        root.rename(tools)


def _download(folder: Path) -> None:
    needed = _run(["apt-cache", "depends", "--recurse", "--important", "prometheus"])
    as_root = ("--option", "APT::Sandbox::User=root")  # another user could not write here
    _run(["apt-get", *as_root, "download", "prometheus", *page_packages(needed)], folder)


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S_MAX,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{' '.join(command[:3])} takes more than {DOWNLOAD_S_MAX:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RunFailed(f"{' '.join(command[:5])} failed: {said[-1]}")
    return done.stdout
