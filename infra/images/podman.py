"""Podman and buildah on a machine that reaches Debian and PyPI but no registry, to try the images there.

    python -m infra.images.podman [TARGET ...] [ARGUMENT=value ...]

builds all of them, or those that are named, from the Containerfiles as they are and with their arguments, such as
VARIANT=cuda: their base is made from Debian's packages, with mmdebstrap, and gets the name under which they ask for it.
Where a registry can be reached, `podman build` or `docker build` is enough.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("podman", "buildah", "runc", "mmdebstrap")  # Debian's packages have the same names
BASE = "docker.io/library/debian:trixie-slim"
FILES = {
    "function": "function",
    "instance": "instance",
    "publisher": "instance",
}  # target -> folder of its Containerfile
COMMAND_S_MAX = 1800.0


def missing() -> list[str]:
    """Which of the tools are not installed, and "root" for who is not."""
    return [tool for tool in TOOLS if not shutil.which(tool)] + (["root"] if os.geteuid() else [])


def image(target: str, tag: str = "local") -> str:
    """The name of what is built here."""
    return f"localhost/warmpool/{target}:{tag}"


def environment() -> dict[str, str]:
    """The environment of podman and buildah."""
    return {**os.environ, "CONTAINERS_CONF": str(Path(__file__).with_name("containers.conf"))}


def run(*command: str | Path) -> str:
    """Run podman or buildah to its end; what it wrote to standard output.

    Raises:
        subprocess.CalledProcessError: It failed; `stderr` says how.
    """
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=COMMAND_S_MAX, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def make_base() -> None:
    """Have the base under its name: what is there stays, and else it is made of the packages that the real one has."""
    if run("podman", "images", "--quiet", BASE):
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "base.tar")
        run("mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io", "trixie", archive)
        run("podman", "import", "--quiet", archive, BASE)


def build_options(**arguments: str) -> list[str]:
    """What `build` of podman and of buildah needs to be told on this machine, and arguments of a Containerfile."""
    given = (f"--build-arg={name}={value}" for name, value in (_indexes() | arguments).items())
    return ["--isolation=chroot", "--network=host", "--pull=never", "--layers", *given, *_mounts()]


def build(target: str, tag: str = "local", **arguments: str) -> str:
    """Build an image; its name.

    Args:
        target: One of `FILES`.
        tag: Of the image.
        arguments: Of its Containerfile, which says what they are.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    run(
        "buildah", "build", *build_options(**arguments), f"--file=infra/images/{FILES[target]}/Containerfile",
        f"--target={target}", f"--tag={image(target, tag)}", ".",
    )  # fmt: skip
    return image(target, tag)


def run_command(
    name: str, *arguments: str, options: Sequence[str] = (), variables: Mapping[str, str], mounts: Mapping[Path, str]
) -> list[str]:
    """The command that runs a container in the foreground: without rights, on a root file system that it cannot write.

    Args:
        name: Of the image.
        arguments: Of what it runs.
        options: More for podman.
        variables: Its environment.
        mounts: Files and folders of this machine, and where it sees them, to read.
    """
    return [
        "podman", "run", "--rm", "--pull=never", "--network=host", "--read-only", "--cap-drop=all",
        "--security-opt=no-new-privileges", *(f"--env={key}={value}" for key, value in variables.items()),
        *(f"--volume={source}:{target}:ro" for source, target in mounts.items()), *options, name, *arguments,
    ]  # fmt: skip


def _indexes() -> dict[str, str]:
    """The index of packages that this machine uses, where it has its own."""
    return {name: os.environ[name] for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX") if os.environ.get(name)}


def _mounts() -> list[str]:
    """This machine's certificates, and what uv has fetched here already."""
    found = []
    certificates = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if certificates and Path(certificates).is_file():
        found += [f"--volume={certificates}:/run/ca.crt:ro", "--build-arg=SSL_CERT_FILE=/run/ca.crt"]
    cache = Path(
        os.environ.get("UV_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "uv")
    )
    if cache.is_dir():
        found += [f"--volume={cache}:/run/fetched", "--build-arg=UV_CACHE_DIR=/run/fetched"]
    return found


def main(*words: str) -> int:
    """Build images; 0 when they are built.

    Args:
        words: Targets (none: all of them), and arguments of their Containerfiles, NAME=value.
    """
    targets = [word for word in words if "=" not in word]
    arguments = dict(word.split("=", 1) for word in words if "=" in word)
    if unknown := sorted(set(targets) - FILES.keys()):
        print(f"images: there is no {', '.join(unknown)}: {', '.join(FILES)} are built here", file=sys.stderr)
        return 2
    if lacking := missing():
        print(f"images: needs {', '.join(lacking)}: apt-get install {' '.join(TOOLS)}", file=sys.stderr)
        return 2
    make_base()
    for target in targets or FILES:
        try:
            print(build(target, **arguments))
        except subprocess.CalledProcessError as error:
            print(f"images: {target} was not built: {error.stderr[-4000:]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
