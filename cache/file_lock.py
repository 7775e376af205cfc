"""A lock between processes that is not waited for for ever: the kernel lets go of it for a process that was killed."""

from __future__ import annotations

import errno
import fcntl
import time

_LOOK_S = 0.002


def lock_alone(descriptor: int, wait_s_max: float, what: str) -> None:
    """Lock an open file for this process alone.

    Args:
        descriptor: Of the file; closing it unlocks.
        wait_s_max: How long another process is waited for.
        what: Named in the error.

    Raises:
        TimeoutError: Another process has it for longer: it is suspended, or its disk is.
    """
    until_s = time.monotonic() + wait_s_max
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise TimeoutError(errno.ETIMEDOUT, f"another process holds {what}") from None
        time.sleep(_LOOK_S)
