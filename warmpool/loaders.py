"""The threads of a lane that do what comes and goes, beside the one that runs batches."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable

from warmpool import messages

LOADERS = 2  # one loads while the other runs: loading takes one core, the first run all of them
# A third one does what comes while batches run, one after the other. It is no nicer: it may hold the interpreter's lock
# or the heap's when it is put off, and then who runs batches waits as well.


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
        for works in (*(self._soon,) * LOADERS, self._quietly):
            threading.Thread(target=self._run, args=(works,), name="loader", daemon=True).start()

    def put(self, work: messages.Work) -> None:
        """Have something done."""
        quietly = isinstance(work, messages.Load) and work.quietly
        (self._quietly if quietly else self._soon).put(work)

    def _run(self, works: queue.SimpleQueue[messages.Work]) -> None:
        try:
            while True:
                self._work_off(works.get())
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)  # the front starts another
