"""The threads of a lane that do what comes and goes, beside the one that runs batches."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable

from warmpool import messages

LOADERS = 2  # one loads while the other runs: loading takes one core, the first run all of them
# They are no nicer than the thread that runs batches: a loader that is put off may hold the interpreter's lock or the
# heap's, and then batches wait as well.


class Loaders:
    """Threads that work off what a lane is told, in its order.

    Args:
        work_off: Does one thing. If that fails, the process ends: a lane that cannot load is none.
    """

    def __init__(self, work_off: Callable[[messages.Work], None]) -> None:
        self._work_off = work_off
        self._works: queue.SimpleQueue[messages.Work] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin."""
        for _ in range(LOADERS):
            threading.Thread(target=self._run, name="loader", daemon=True).start()

    def put(self, work: messages.Work) -> None:
        """Have something done."""
        self._works.put(work)

    def _run(self) -> None:
        try:
            while True:
                self._work_off(self._works.get())
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)  # the front starts another
