"""`warmpool`, as a process whose lanes have an odd device.

ODD_DEVICE is a folder with files, each of which is one trouble: a run that finds one removes it, and fails as with a
lost device where its name begins with "lose", and as one executable does where with "fail". One named "lost" stays, and
so does "short-PID", the process for whose runs there is no room.
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


def make_device_odd(folder: Path) -> None:
    run = Executable.run

    def odd_run(executable: Executable, arguments: Any) -> Any:
        for trouble in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another lane has it
                if trouble.name.startswith("short"):
                    if trouble.name != f"short-{os.getpid()}":
                        continue
                elif trouble.name != "lost":
                    trouble.unlink()
                what = {"fail": FAILED, "shor": SHORT}.get(trouble.name[:4], LOST)
                raise failure("the executable failed", RuntimeError(what))
        return run(executable, arguments)

    setattr(Executable, "run", odd_run)  # noqa: B010


if __name__ == "__main__":
    be_patient()
    make_device_odd(Path(os.environ["ODD_DEVICE"]))
    sys.exit(cli.main())
