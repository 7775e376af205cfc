"""Install what a lock file names without the weights that packages bring: those of a function's model are in the store.

Runs in the build, on the root file system that becomes the image. What is removed in a step of its own stays in the
layer below.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UV = "/run/build/tools/bin/uv"
WEIGHTS = "*.safetensors"


def main(environment: str, lock: str) -> None:
    """Make the environment (a folder) what the lock file says."""
    subprocess.run(
        [UV, "pip", "sync", "--quiet", "--python", environment, "--only-binary", ":all:", "--require-hashes", lock],
        check=True,
    )
    for path in Path(environment).rglob(WEIGHTS):
        path.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
