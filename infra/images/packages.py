"""Install what a lock file names, without what packages bring and no image needs: tests, symbols, weights.

Runs in the build, with the environment's own Python, on the root file system that becomes the image. What is removed
in a step of its own stays in the layer below. RECORD goes on to tell what the wheel had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from fnmatch import fnmatch
from importlib.metadata import Distribution, distributions
from pathlib import Path

UV = "/run/build/tools/bin/uv"
STRIP = Path("/run/build/strip/strip")  # binutils', beside its libraries
SITE = Path(sysconfig.get_path("purelib"))
# Executables are valid for one build of XLA, known by the digest that its wheel tells; NVIDIA's come without symbols.
KEPT_WHOLE = ("jax*", "libtpu*", "nvidia*")


def installed() -> dict[str, Distribution]:
    """What the environment has, by its name."""
    return {one.name: one for one in distributions(path=[str(SITE)])}


def remove(*names: str) -> None:
    """Remove folders named tests, which nothing imports, and files by patterns for their names."""
    for found, folders, files in os.walk(SITE):
        if "tests" in folders:
            folders.remove("tests")
            shutil.rmtree(Path(found, "tests"))
        for file in files:
            if any(fnmatch(file, name) for name in names):
                Path(found, file).unlink()


def strippable(one: Distribution) -> list[str]:
    """The native modules of a package, but for those that auditwheel patched: what it moved, strip may break."""
    files = one.files or []
    if any(fnmatch(one.name, name) for name in KEPT_WHOLE) or any(file.parts[0].endswith(".libs") for file in files):
        return []
    return [str(one.locate_file(file)) for file in files if file.suffix == ".so"]


def main(lock: str, *unwanted: str) -> None:
    """Add to the environment what the lock file says.

    Args:
        lock: File of requirements, with hashes.
        unwanted: Patterns for names of files that it gets none of.
    """
    before = installed()
    command = [UV, "pip", "install", "--quiet", "--python", sys.prefix, "--only-binary", ":all:", "--no-deps"]
    subprocess.run([*command, "--require-hashes", "--requirement", lock], check=True)
    remove(*unwanted)
    added = [one for name, one in installed().items() if name not in before]
    if modules := [path for one in added for path in strippable(one)]:
        environment = {"LD_LIBRARY_PATH": str(STRIP.parent)}
        subprocess.run([STRIP, "--strip-unneeded", *modules], env=environment, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
