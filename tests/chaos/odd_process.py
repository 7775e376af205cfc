"""`warmpool`, as a process whose lanes have an odd device, and all of whose clock is odd.

ODD_DEVICE is a folder with files, each of which is one trouble: a run that finds one removes it, and fails as with a
lost device where its name begins with "lose", and as one executable does where with "fail". One named "lost" stays.
ODD_CLOCK is a file with the seconds by which `time.time` and `time.time_ns` are off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from cache.executable import Executable
from cache.xla_errors import failure
from warmpool import cli

LOST = "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
FAILED = "INTERNAL: this executable alone failed"


def make_device_odd(folder: Path) -> None:
    run = Executable.run

    def odd_run(executable: Executable, arguments: Any) -> Any:
        for trouble in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another lane has it
                if trouble.name != "lost":
                    trouble.unlink()
                what = FAILED if trouble.name.startswith("fail") else LOST
                raise failure("the executable failed", RuntimeError(what))
        return run(executable, arguments)

    setattr(Executable, "run", odd_run)  # noqa: B010


def make_clock_odd(file: Path) -> None:
    now_ns = time.time_ns

    def odd_ns() -> int:
        return now_ns() + int(file.read_text()) * 10**9

    setattr(time, "time_ns", odd_ns)  # noqa: B010
    setattr(time, "time", lambda: odd_ns() / 1e9)  # noqa: B010


if __name__ == "__main__":
    make_device_odd(Path(os.environ["ODD_DEVICE"]))
    make_clock_odd(Path(os.environ["ODD_CLOCK"]))
    sys.exit(cli.main())
