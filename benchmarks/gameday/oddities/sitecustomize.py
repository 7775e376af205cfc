"""Python runs this at its start where this folder is on its path: compiles meet their fates, and the clock is odd.

Nothing changes for a process without FATES or ODD_CLOCK in its environment (see `benchmarks.gameday.fates`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

MEMORY_BYTES = 7 << 30  # none of them is used: a machine has so many to give, if no limit keeps them from who asks


def meet_fates(folder: Path) -> None:
    """A zygote's child imports by name what it is to run, which is where this takes hold."""
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        module = real(name, package)
        if name == "warmpool.publishing.worker" and "fated" not in vars(module):
            setattr(module, "fated", True)  # noqa: B010
            for what in ("compile_bucket", "trial"):
                setattr(module, what, _fated(folder, what, getattr(module, what)))
        return module

    importlib.import_module = import_module


def _fated(folder: Path, what: str, function: Any) -> Any:
    def run(argument: dict[str, Any]) -> Any:
        bucket = ",".join(f"{name}={size}" for name, size in argument["bucket"].items())
        with (folder / what).open("a") as log:
            log.write(f"{argument['key']} {bucket}\n")
        _meet(folder, f"{what} {bucket}")
        return function(argument)

    return run


def _meet(folder: Path, what: str) -> None:
    def fate() -> str:
        return str(json.loads((folder / "fates.json").read_text()).get(what, ""))

    while fate() == "wait":
        time.sleep(0.01)
    match fate():
        case "crash":
            os.abort()
        case "hang":
            signal.pause()
        case "memory":
            bytearray(MEMORY_BYTES)
        case "raise":
            raise ValueError("no such thing")


def make_clock_odd(file: Path) -> None:
    """`time.time` and `time.time_ns` are off by the seconds that a file says."""
    now_ns = time.time_ns

    def odd_ns() -> int:
        return now_ns() + int(file.read_text()) * 10**9

    setattr(time, "time_ns", odd_ns)  # noqa: B010
    setattr(time, "time", lambda: odd_ns() / 1e9)  # noqa: B010


if "FATES" in os.environ:
    meet_fates(Path(os.environ["FATES"]))
if "ODD_CLOCK" in os.environ:
    make_clock_odd(Path(os.environ["ODD_CLOCK"]))
