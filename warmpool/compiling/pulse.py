"""Who compiles gives way within a millisecond: something wakes on each processor, and Linux looks again who is to run.

A compile is of the class SCHED_IDLE, so whoever wakes beside it has Linux choose anew at once. But since Linux 6.6 only
the eligible are chosen from: who has had more than its share since it began to compete is not, and against one who is
owed next to nothing, any time at all is more. A thread that serves, was interrupted after 0.1 ms and is ready again, or
slept and wakes, is then passed over for the compile, which goes on running until there is a reason to choose anew: that
is the next tick, of 4 ms where there are 250 a second. It would have been eligible after some microseconds. (I. Stoica,
H. Abdel-Wahab, Earliest Eligible Virtual Deadline First, 1995; `pick_eevdf` in kernel/sched/fair.c.)
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from types import TracebackType

BEAT_S = 0.001  # a hundredth of each processor, less where it beats seldom
PROCESSORS_MAX = 8


class Pulse:
    """A thread for each processor that wakes there every millisecond, while it is entered. One block at a time.

    Make it before this process becomes nice or idle: threads are of the class of who makes them, and who is to be let
    in must not be of the class of the compile. None beats where there are more than `PROCESSORS_MAX` processors: who
    serves finds another that is free, and a container's quota, which may be of a few of them, is not spent on beats.

    Args:
        processors: Their numbers.
    """

    def __init__(self, processors: Iterable[int]) -> None:
        self._beats = threading.Event()
        numbers = set(processors)
        for one in numbers if len(numbers) <= PROCESSORS_MAX else ():
            threading.Thread(target=self._beat, args=(one,), name=f"pulse {one}", daemon=True).start()

    def __enter__(self) -> None:
        self._beats.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beats.clear()

    def _beat(self, processor: int) -> None:
        with contextlib.suppress(OSError):  # it was taken from us meanwhile: then it beats on another
            os.sched_setaffinity(0, {processor})  # of this thread
        while self._beats.wait():
            time.sleep(BEAT_S)
