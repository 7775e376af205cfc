"""A lane that stands still, so that a test and not the machine's speed says how long a batch takes."""

from __future__ import annotations

import os
import signal
from types import TracebackType
from typing import Self

from tests.instance_process import InstanceProcess, wait_until


class StoppedLane:
    """A running instance's lane, stopped in the block: what it is given is run after that.

    The instance measures how long that took, predicts delays by it, and refuses who would be late. So it is an
    instance of the test's own, where the machine may be slow.

    Args:
        instance: Whose lane it is.
        name: Of the lane.
    """

    def __init__(self, instance: InstanceProcess, name: str = "primary") -> None:
        self.instance = instance
        self.name = name
        self.pid: int = instance.lane(name)["pid"]

    def __enter__(self) -> Self:
        self.stop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait_busy(self) -> None:
        """Wait until it was given a batch."""
        wait_until(lambda: self.instance.gauge("warmpool_lane_busy", lane=self.name) == 1)
