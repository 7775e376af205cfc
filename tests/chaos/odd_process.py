"""`warmpool`, as a process whose lanes have an odd device.

ODD_DEVICE is a folder with files, each of which is one trouble, named "KIND" or "KIND-...": a run that finds one fails,
as with a lost device ("lose", "lost") or as one executable does ("fail"), and removes it. "lost" stays, and so does
"short-PID", for whose process there is no room to run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from cache.executable import Executable
from cache.xla_errors import failure
from tests.patient_instance import be_patient
from warmpool import cli

LOST = "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
FAILED = "INTERNAL: this executable alone failed"
SHORT = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes."
SAID = {"lose": LOST, "lost": LOST, "fail": FAILED, "short": SHORT}
STAYS = {"lost", "short"}


def make_device_odd(folder: Path) -> None:
    run = Executable.run

    def odd_run(executable: Executable, arguments: Any) -> Any:
        for trouble in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another lane has it
                kind, _, of = trouble.name.partition("-")
                if kind == "short" and of != str(os.getpid()):
                    continue
                if kind not in STAYS:
                    trouble.unlink()
                raise failure("the executable failed", RuntimeError(SAID[kind]))
        return run(executable, arguments)

    setattr(Executable, "run", odd_run)  # noqa: B010


if __name__ == "__main__":
    be_patient()
    make_device_odd(Path(os.environ["ODD_DEVICE"]))
    sys.exit(cli.main())
