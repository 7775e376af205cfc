"""`warmpool`, as a process whose lanes die in batches of the version "crashing", and grow in those of "growing"."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from cache.executable import Executable
from warmpool import cli, messages
from warmpool.lane import Lane

GROWTH_BYTES = 2 << 20

load, run = Lane._load, Executable.run
versions: dict[int, str] = {}  # of executables that are warm, by their identity
grown: list[bytes] = []


def loading(self: Lane, message: messages.Load) -> messages.Warm | messages.Cold:
    answer = load(self, message)
    if isinstance(answer, messages.Warm):
        versions[id(self.warm[message.executable].executable)] = message.version
    return answer


def running(self: Executable, arguments: Any) -> Any:
    version = versions.get(id(self), "")
    if version.endswith("/crashing"):
        os.kill(os.getpid(), signal.SIGKILL)
    if version.endswith("/growing"):
        grown.append(b"x" * GROWTH_BYTES)
    return run(self, arguments)


if __name__ == "__main__":
    Lane._load = loading  # type: ignore[assignment,method-assign]
    Executable.run = running  # type: ignore[method-assign]
    sys.exit(cli.main())
