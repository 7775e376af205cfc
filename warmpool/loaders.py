"""The threads of a lane that do what comes and goes, beside the one that runs batches."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import traceback
from collections.abc import Callable

from warmpool import messages

LOADERS = 2  # one loads while the other runs: loading takes one core, the first run all of them
QUIET_NICE = 10  # of a third one, beside whose loads batches are to run as if there were none: a tenth of their weight


class Loaders:
    """Threads that work off what a lane is told, in its order.

    Args:
        work_off: Does one thing. If that fails, the process ends: a lane that cannot load is none.
    """

    def __init__(self, work_off: Callable[[messages.Work], None]) -> None:
        self._work_off = work_off
        self._soon: queue.SimpleQueue[messages.Work] = queue.SimpleQueue()
        self._quietly: queue.SimpleQueue[messages.Work] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin."""
        for works, nice in ((self._soon, 0),) * LOADERS + ((self._quietly, QUIET_NICE),):
            threading.Thread(target=self._run, args=(works, nice), name="loader", daemon=True).start()

    def put(self, work: messages.Work) -> None:
        """Have something done."""
        quietly = isinstance(work, messages.Load) and work.quietly
        (self._quietly if quietly else self._soon).put(work)

    def _run(self, works: queue.SimpleQueue[messages.Work], nice: int) -> None:
        try:
            with contextlib.suppress(OSError):  # then it is as loud as the others
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _niceness() + nice)  # a thread's, on Linux
            while True:
                self._work_off(works.get())
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)  # the front starts another


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)
