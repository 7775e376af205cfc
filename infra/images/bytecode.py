"""Compile what lies in some folders and has no bytecode yet.

Runs in the build, on the root file system that becomes the image. Nobody compares the bytecode with its source (PEP
552): times of files change on their way into a registry. uv and compileall would compile in each layer all that the
layers below it have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode
from py_compile import compile as compiled

AT_A_TIME = 32  # files, for which one process is asked


def lacking(folder: str) -> Iterator[str]:
    """The sources below a folder that have no bytecode."""
    for found, _, names in os.walk(folder):
        sources = (f"{found}/{name}" for name in names if name.endswith(".py"))
        yield from (source for source in sources if not Path(cache_from_source(source)).exists())


def compile_source(path: str) -> None:
    """Compile one; a template that ends in .py and is none stays as it is."""
    compiled(path, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def main(*folders: str) -> None:
    """Compile, with a process for each core."""
    paths = [path for folder in folders for path in lacking(folder)]
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(compile_source, paths, chunksize=AT_A_TIME):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
