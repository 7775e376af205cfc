"""Prometheus for a stack: where the program comes from, and what it is to scrape.

Where there is none on the PATH, Debian's own package is downloaded through apt and unpacked, not installed: that needs
no root, and starts no service of the system that listens on every address.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.stack.errors import StackFailed

DOWNLOAD_S_MAX = 300.0
SCRAPE_S = 1


def find_program(tools: Path) -> Path:
    """Prometheus: on the PATH, or unpacked in `tools`, where it is put if it is not there yet.

    Raises:
        StackFailed: It cannot be had; the message says why.
    """
    if found := shutil.which("prometheus"):
        return Path(found)
    program = tools / "usr" / "bin" / "prometheus"
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
    """The packages that Prometheus's pages need, of those that a Debian package depends on."""
    return re.findall(r"(?<![\w-])(?:libjs|fonts)-[a-z0-9.+-]+", depends)


def _unpack(tools: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise StackFailed("there is no prometheus on the PATH, and no apt-get to download it; install it")
    tools.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools.parent) as place:
        (package,) = _downloaded(Path(place, "program"), ["prometheus"])
        pages = page_packages(_run(["dpkg-deb", "--field", str(package), "Depends"]))
        root = Path(place, "root")
        for archive in (package, *_downloaded(Path(place, "pages"), pages)):
            _run(["dpkg-deb", "--extract", str(archive), str(root)])
        shutil.rmtree(tools, ignore_errors=True)
        root.rename(tools)


def _downloaded(folder: Path, packages: Sequence[str]) -> list[Path]:
    """The archives of packages; apt's own lists are refreshed where they do not know them."""
    if not packages:
        return []
    folder.mkdir()
    command = ["apt-get", "--option", "APT::Sandbox::User=root", "download", *packages]
    try:
        _run(command, folder)
    except StackFailed:
        _run(["apt-get", "update"])
        _run(command, folder)
    return sorted(folder.glob("*.deb"))


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
        raise StackFailed(f"{' '.join(command[:3])} takes more than {DOWNLOAD_S_MAX:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise StackFailed(f"{' '.join(command[:5])} failed: {said[-1]}")
    return done.stdout
