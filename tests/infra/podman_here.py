"""Podman, and for a build what this machine needs: its index of packages, its certificates, what uv fetched already.

A command of its name runs it, in a folder that readers of guides have first on their PATH: `podman_here.py FOLDER ...`.
That folder gets the names of what is built, in the file `built`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from infra.images import podman


def main(folder: Path, *words: str) -> None:
    found = next(path for path in os.get_exec_path() if path != str(folder) and shutil.which("podman", path=path))
    if words[0] == "build":
        podman.make_base()
        with (folder / "built").open("a") as built:
            built.writelines(f"{word.removeprefix('--tag=')}\n" for word in words if word.startswith("--tag="))
        words = ("build", *podman.build_options(), *words[1:])
    os.execve(f"{found}/podman", ["podman", *words], podman.environment())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
