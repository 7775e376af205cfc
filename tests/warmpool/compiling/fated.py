"""What becomes of compiles in an instance's children: real crashes, hangs and the like, and a count of all of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

# Python runs this at its start. A zygote's child imports by name what it is to run, which is where it takes hold.
_SITE = """
import importlib, json, os, signal, sys, time
from pathlib import Path

folder = Path(os.environ["FATES"])
real = importlib.import_module

def meet(what, argument):
    bucket = ",".join(f"{name}={size}" for name, size in argument["bucket"].items())
    with (folder / what).open("a") as log:
        log.write(f"{argument['key']} {bucket}\\n")
    fate = json.loads((folder / "fates.json").read_text()).get(f"{what} {bucket}")
    if fate == "crash":
        os.abort()
    if fate == "hang":
        signal.pause()
    while fate == "wait":
        time.sleep(0.01)
        fate = json.loads((folder / "fates.json").read_text()).get(f"{what} {bucket}")
    if fate == "memory":
        bytearray(1 << 40)
    if fate == "raise":
        raise ValueError("no such thing")

def import_module(name, package=None):
    module = real(name, package)
    if name == "warmpool.publishing.worker" and "fated" not in vars(module):
        module.fated = True
        for what in ("compile_bucket", "trial"):
            def run(argument, what=what, function=getattr(module, what)):
                meet(what, argument)
                return function(argument)
            setattr(module, what, run)
    return module

importlib.import_module = import_module
"""


class Fates:
    """Fates by what is done ("compile_bucket" or "trial") and bucket; nothing happens to others.

    Args:
        folder: A folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_SITE)
        self.write({})

    @property
    def environment(self) -> dict[str, str]:
        """Of an instance whose children meet them."""
        return {"PYTHONPATH": str(self._folder), "FATES": str(self._folder)}

    def write(self, fates: dict[str, str]) -> None:
        """Let these happen from now on, such as {"compile_bucket batch=2,seq=4": "crash"}."""
        written = self._folder / "fates.written"
        written.write_text(json.dumps(fates))
        written.rename(self._folder / "fates.json")  # whole at any moment, for those that wait

    def met(self, what: str = "compile_bucket") -> Counter[str]:
        """How often it was done, by bucket."""
        return Counter(line.split()[1] for line in self._lines(what))

    def keys(self) -> Counter[str]:
        """How often something was compiled, by key."""
        return Counter(line.split()[0] for line in self._lines("compile_bucket"))

    def _lines(self, what: str) -> list[str]:
        file = self._folder / what
        return file.read_text().splitlines() if file.exists() else []
