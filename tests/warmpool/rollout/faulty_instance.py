"""`warmpool`, as a process whose lanes die in batches of the version "crashing", and grow in those of "growing"."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from warmpool import cli, lane, messages
from warmpool.lane import Lane

GROWTH_BYTES = 2 << 20

load, run = Lane._load, Lane._run
versions: dict[int, str] = {}  # of what is warm, by its identity
grown: list[bytes] = []


def loading(self: Lane, message: messages.Load) -> messages.Warm | messages.Cold:
    answer = load(self, message)
    if isinstance(answer, messages.Warm):
        versions[id(self.warm[message.executable])] = message.version
    return answer


def running(self: Lane, warm: Any) -> messages.Done | messages.Failed:
    version = versions.get(id(warm), "")
    if version.endswith("/crashing"):
        os.kill(os.getpid(), signal.SIGKILL)
    if version.endswith("/growing"):
        grown.append(b"x" * GROWTH_BYTES)
    return run(self, warm)


if __name__ == "__main__":
    lane.Lane._load = loading  # type: ignore[assignment,method-assign]
    lane.Lane._run = running  # type: ignore[method-assign]
    sys.exit(cli.main())
